//! YAML → cases. Every fault is reported with its place; unknown keys are faults.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quota_compiler::Limits;
use quota_compiler::codes;
use quota_compiler::diagnostic::{self, Diagnostic};
use quota_compiler::span::{PolicyText, Span};
use quota_compiler::syntax::nearest_by_spelling;
use quota_compiler::syntax::plain::{self, Plain, PlainValue};
use quota_runtime::outcome::{BackendFailure, Decision, Reason};
use quota_runtime::request::ClientAddress;
use serde_json::Value;

use super::{Case, CaseFile, CasePolicies, CaseRequest, Expect, ExpectedOutcome, Step};

/// Where a case starts that says nothing: 2027-01-15T08:00:00Z, a multiple of every common window length up to an hour.
pub const DEFAULT_START_UNIX_MS: u64 = 1_800_000_000_000;

/// A step is repeated at most this often.
const MAX_REPEAT: u32 = 1_000_000;

/// The words of `backend:` in a step.
const UP: &str = "up";
const FAULTS: [(&str, BackendFailure); 3] = [
    ("timeout", BackendFailure::Timeout),
    ("unavailable", BackendFailure::Unavailable),
    ("error", BackendFailure::Error),
];

/// Why a file holds no cases.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its text.
    pub text: PolicyText,
    /// What is wrong, sorted.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads the case file `bytes`, called `name`.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn read(name: &str, bytes: &[u8], limits: Limits) -> Result<CaseFile, Box<Unreadable>> {
    let read = plain::read(name, bytes, limits);
    let mut reader = Reader {
        text: &read.text,
        faults: Vec::new(),
    };
    for fault in read.faults {
        reader.fault(fault.span, "", fault.message).help = fault.help;
    }
    let cases = match &read.root {
        Some(root) => reader.file(root),
        None => {
            if reader.faults.is_empty() {
                reader.fault(
                    Span::new(0, 0),
                    "",
                    "the file is empty; a case file holds a list `cases`",
                );
            }
            Vec::new()
        }
    };
    let mut faults = reader.faults;
    if faults.is_empty() {
        return Ok(CaseFile {
            text: read.text,
            cases,
        });
    }
    diagnostic::sort(&mut faults);
    Err(Box::new(Unreadable {
        text: read.text,
        diagnostics: faults,
    }))
}

struct Reader<'t> {
    text: &'t PolicyText,
    faults: Vec<Diagnostic>,
}

/// A mapping whose keys are taken one by one; what is left over is unknown.
struct Fields<'p> {
    path: String,
    span: Span,
    pairs: Vec<(&'p str, &'p Plain, &'p Plain)>,
    known: Vec<&'static str>,
    /// Required ones that were not there: the key, and what to say.
    missing: Vec<(&'static str, String)>,
}

impl<'p> Fields<'p> {
    fn take(&mut self, key: &'static str) -> Option<&'p Plain> {
        self.known.push(key);
        let place = self.pairs.iter().position(|(name, ..)| *name == key)?;
        Some(self.pairs.remove(place).2)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

/// What kind of value stands somewhere, for messages.
fn kind(value: &PlainValue) -> &'static str {
    match value {
        PlainValue::Scalar(Value::Null) => "null",
        PlainValue::Scalar(Value::Bool(_)) => "a bool",
        PlainValue::Scalar(Value::Number(_)) => "a number",
        PlainValue::Scalar(_) => "a string",
        PlainValue::Binary(_) => "binary data",
        PlainValue::List(_) => "a list",
        PlainValue::Mapping(_) => "a mapping",
    }
}

impl Reader<'_> {
    fn fault(
        &mut self,
        span: Span,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        let fault = Diagnostic::new(&codes::INVALID_TEST_CASE, field, span, message);
        // A place for the reference that is returned: the vector is not empty after the push.
        let place = self.faults.len();
        self.faults.push(fault);
        &mut self.faults[place]
    }

    fn wrong(&mut self, found: &Plain, field: &str, expected: &str) {
        let message = format!("expected {expected}, found {}", kind(&found.value));
        self.fault(found.span, field, message);
    }

    fn fields<'p>(&mut self, plain: &'p Plain, path: &str) -> Option<Fields<'p>> {
        let PlainValue::Mapping(pairs) = &plain.value else {
            self.wrong(plain, path, "a mapping");
            return None;
        };
        let mut named = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            match &key.value {
                PlainValue::Scalar(Value::String(name)) => named.push((&**name, key, value)),
                PlainValue::Scalar(_)
                | PlainValue::Binary(_)
                | PlainValue::List(_)
                | PlainValue::Mapping(_) => self.wrong(key, path, "the name of a field"),
            }
        }
        Some(Fields {
            path: path.to_owned(),
            span: plain.span,
            pairs: named,
            known: Vec::new(),
            missing: Vec::new(),
        })
    }

    /// Reports what was not taken, and what was not there unless it was misspelt.
    fn rest(&mut self, fields: &Fields<'_>) {
        let mut misspelt = Vec::new();
        for (name, key, _) in &fields.pairs {
            let nearest = nearest_by_spelling(name, fields.known.iter().copied());
            misspelt.extend(nearest);
            let help = nearest.map_or_else(
                || format!("the fields here are {}", quoted(&fields.known)),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            let message = format!("there is no field `{}` here", name.escape_debug());
            self.fault(key.span, fields.path_of(name), message).help = Some(help);
        }
        for (key, message) in &fields.missing {
            let one_of = key.split('|');
            if !one_of.clone().any(|key| misspelt.contains(&key)) {
                let first = one_of.clone().next().unwrap_or(key);
                let start = Span::at(fields.span.start);
                self.fault(start, fields.path_of(first), message.clone())
                    .help = Some(format!("the fields here are {}", quoted(&fields.known)));
            }
        }
    }

    fn required<'p>(&mut self, fields: &mut Fields<'p>, key: &'static str) -> Option<&'p Plain> {
        let found = fields.take(key);
        if found.is_none() {
            fields
                .missing
                .push((key, format!("the field `{key}` is missing")));
        }
        found
    }

    fn string(&mut self, plain: &Plain, field: &str) -> Option<String> {
        if let PlainValue::Scalar(Value::String(text)) = &plain.value {
            return Some(text.clone());
        }
        self.wrong(plain, field, "a string");
        None
    }

    fn integer(&mut self, plain: &Plain, field: &str, least: u64, most: u64) -> Option<u64> {
        if let PlainValue::Scalar(Value::Number(number)) = &plain.value
            && let Some(number) = number.as_u64()
            && (least..=most).contains(&number)
        {
            return Some(number);
        }
        let message = format!("expected a whole number from {least} to {most}");
        self.fault(plain.span, field, message);
        None
    }

    fn word<T: Copy>(
        &mut self,
        plain: &Plain,
        field: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.string(plain, field)?;
        if let Some((_, meant)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meant);
        }
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let nearest = nearest_by_spelling(&text, names.iter().copied());
        let help = nearest.map_or_else(
            || format!("the words here are {}", quoted(&names)),
            |nearest| format!("did you mean `{nearest}`?"),
        );
        let message = format!("unknown word `{}`", text.escape_debug());
        self.fault(plain.span, field, message).help = Some(help);
        None
    }

    fn list<'p>(&mut self, plain: &'p Plain, field: &str) -> Option<&'p [Plain]> {
        if let PlainValue::List(items) = &plain.value {
            return Some(items);
        }
        self.wrong(plain, field, "a list");
        None
    }

    fn file(&mut self, root: &Plain) -> Vec<Case> {
        let Some(mut fields) = self.fields(root, "") else {
            return Vec::new();
        };
        let found = self.required(&mut fields, "cases");
        self.rest(&fields);
        let items = found.and_then(|found| self.list(found, "cases"));
        if let (Some([]), Some(found)) = (items, found) {
            self.fault(found.span, "cases", "there is no case in the list");
        }
        items
            .unwrap_or_default()
            .iter()
            .enumerate()
            .filter_map(|(index, item)| self.case(item, &format!("cases[{index}]")))
            .collect()
    }

    fn case(&mut self, plain: &Plain, path: &str) -> Option<Case> {
        let mut fields = self.fields(plain, path)?;
        let name = self.required(&mut fields, "name");
        let name = name.and_then(|found| self.string(found, &fields.path_of("name")));
        let policies = self.policies(&mut fields);
        let start = match fields.take("start") {
            None => Some(DEFAULT_START_UNIX_MS),
            Some(found) => self.start(found, &fields.path_of("start")),
        };
        let steps_path = fields.path_of("steps");
        let steps = self.required(&mut fields, "steps");
        let steps = steps.and_then(|found| {
            let items = self.list(found, &steps_path)?;
            if items.is_empty() {
                self.fault(found.span, &*steps_path, "there is no step in the list");
            }
            Some(
                items
                    .iter()
                    .enumerate()
                    .filter_map(|(index, item)| self.step(item, &format!("{steps_path}[{index}]")))
                    .collect(),
            )
        });
        self.rest(&fields);
        Some(Case {
            name: name?,
            line: self.text.line(plain.span.start),
            policies: policies?,
            start_unix_ms: start?,
            steps: steps?,
        })
    }

    fn policies(&mut self, fields: &mut Fields<'_>) -> Option<CasePolicies> {
        let file = fields.take("policy");
        let inline = fields.take("quota");
        match (file, inline) {
            (Some(file), None) => {
                let path = self.string(file, &fields.path_of("policy"))?;
                if path.trim().is_empty() {
                    self.fault(file.span, fields.path_of("policy"), "the path is blank");
                    return None;
                }
                Some(CasePolicies::File(path.into()))
            }
            (None, Some(inline)) => {
                if !matches!(inline.value, PlainValue::Mapping(_)) {
                    self.wrong(inline, &fields.path_of("quota"), "a quota object");
                    return None;
                }
                Some(CasePolicies::Inline(blanked(
                    self.text.as_str(),
                    inline.span,
                )))
            }
            (Some(_), Some(inline)) => {
                let message = "a case has either `policy` or `quota`, not both";
                self.fault(inline.span, fields.path_of("quota"), message);
                None
            }
            (None, None) => {
                let message = "a case needs `policy` (a path) or `quota` (a quota object)";
                fields.missing.push(("policy|quota", message.to_owned()));
                None
            }
        }
    }

    fn start(&mut self, plain: &Plain, field: &str) -> Option<u64> {
        match &plain.value {
            PlainValue::Scalar(Value::Number(number)) if number.is_u64() => number.as_u64(),
            PlainValue::Scalar(Value::String(text)) => {
                let since = humantime::parse_rfc3339(text.trim())
                    .ok()
                    .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                if let Some(millis) = since.and_then(|since| u64::try_from(since.as_millis()).ok())
                {
                    return Some(millis);
                }
                self.fault(plain.span, field, "this is no time as in RFC 3339, in UTC")
                    .help = Some(
                    "write it as in \"2027-01-15T08:00:00Z\", or as Unix milliseconds".to_owned(),
                );
                None
            }
            PlainValue::Scalar(_)
            | PlainValue::Binary(_)
            | PlainValue::List(_)
            | PlainValue::Mapping(_) => {
                self.wrong(
                    plain,
                    field,
                    "Unix milliseconds or a time such as \"2027-01-15T08:00:00Z\"",
                );
                None
            }
        }
    }

    fn step(&mut self, plain: &Plain, path: &str) -> Option<Step> {
        let mut fields = self.fields(plain, path)?;
        let at = match fields.take("at") {
            None => Some(0),
            Some(found) => self.at(found, &fields.path_of("at")),
        };
        let repeat = match fields.take("repeat") {
            None => Some(1),
            Some(found) => self.integer(found, &fields.path_of("repeat"), 1, MAX_REPEAT.into()),
        };
        let request = self.required(&mut fields, "request");
        let request = request.and_then(|found| self.request(found, &fields.path_of("request")));
        let fault = match fields.take("backend") {
            None => Some(None),
            Some(found) => {
                let faults = FAULTS.map(|(word, fault)| (word, Some(fault)));
                let words = [&[(UP, None)][..], &faults].concat();
                self.word(found, &fields.path_of("backend"), &words)
            }
        };
        let expect = self.required(&mut fields, "expect");
        let expect = expect.and_then(|found| self.expect(found, &fields.path_of("expect")));
        self.rest(&fields);
        Some(Step {
            line: self.text.line(plain.span.start),
            at_ms: at?,
            // In bounds by the check above.
            repeat: u32::try_from(repeat?).unwrap_or(MAX_REPEAT),
            request: request?,
            fault: fault?,
            expect: expect?,
        })
    }

    /// Milliseconds as a number, or a duration such as `250ms`; either may be negative.
    fn at(&mut self, plain: &Plain, field: &str) -> Option<i64> {
        let millis = match &plain.value {
            PlainValue::Scalar(Value::Number(number)) => number.as_i64(),
            PlainValue::Scalar(Value::String(text)) => duration_ms(text.trim()),
            PlainValue::Scalar(_)
            | PlainValue::Binary(_)
            | PlainValue::List(_)
            | PlainValue::Mapping(_) => None,
        };
        if millis.is_none() {
            self.fault(plain.span, field, "this is no time after the start")
                .help = Some(
                "write whole milliseconds, or a duration such as \"1s\", \"250ms\" or \"2m\""
                    .to_owned(),
            );
        }
        millis
    }

    fn request(&mut self, plain: &Plain, path: &str) -> Option<CaseRequest> {
        let mut fields = self.fields(plain, path)?;
        let optional = |reader: &mut Self, fields: &mut Fields<'_>, key| match fields.take(key) {
            None => Some(None),
            Some(found) => reader.string(found, &fields.path_of(key)).map(Some),
        };
        let route = optional(self, &mut fields, "route");
        let client = optional(self, &mut fields, "client_ip");
        // No source reads the method; a case may name it all the same.
        let method = optional(self, &mut fields, "method");
        let uri = optional(self, &mut fields, "uri");
        let headers = match fields.take("headers") {
            None => Some(Vec::new()),
            Some(found) => self.headers(found, &fields.path_of("headers")),
        };
        self.rest(&fields);
        method?;
        Some(CaseRequest {
            route: route?,
            client: client?.map_or(ClientAddress::Unknown, |text| ClientAddress::parse(&text)),
            uri: uri?.unwrap_or_else(|| "/".to_owned()),
            headers: headers?,
        })
    }

    /// A list of pairs, or a mapping.
    fn headers(&mut self, plain: &Plain, field: &str) -> Option<Vec<(String, Vec<u8>)>> {
        match &plain.value {
            PlainValue::List(items) => items
                .iter()
                .map(|item| self.header_pair(item, field))
                .collect(),
            PlainValue::Mapping(pairs) => pairs
                .iter()
                .map(|(name, value)| {
                    Some((self.string(name, field)?, self.header_value(value, field)?))
                })
                .collect(),
            PlainValue::Scalar(_) | PlainValue::Binary(_) => {
                self.wrong(plain, field, "a list of pairs or a mapping");
                None
            }
        }
    }

    fn header_pair(&mut self, plain: &Plain, field: &str) -> Option<(String, Vec<u8>)> {
        if let PlainValue::List(pair) = &plain.value
            && let [name, value] = pair.as_slice()
        {
            return Some((self.string(name, field)?, self.header_value(value, field)?));
        }
        self.wrong(plain, field, "a pair of name and value");
        None
    }

    fn header_value(&mut self, plain: &Plain, field: &str) -> Option<Vec<u8>> {
        match &plain.value {
            PlainValue::Scalar(Value::String(text)) => Some(text.clone().into_bytes()),
            PlainValue::Binary(text) => {
                let packed: String = text.split_whitespace().collect();
                let decoded = STANDARD.decode(packed);
                if decoded.is_err() {
                    self.fault(plain.span, field, "this is not base64");
                }
                decoded.ok()
            }
            PlainValue::Scalar(_) | PlainValue::List(_) | PlainValue::Mapping(_) => {
                self.fault(
                    plain.span,
                    field,
                    format!("expected a string, found {}", kind(&plain.value)),
                )
                .help = Some("put the value in quotes".to_owned());
                None
            }
        }
    }

    fn expect(&mut self, plain: &Plain, path: &str) -> Option<Expect> {
        let mut fields = self.fields(plain, path)?;
        let statuses = [200, 429, 503];
        let status = match fields.take("status") {
            None => Some(None),
            Some(found) => {
                let field = fields.path_of("status");
                let number = self.integer(found, &field, 100, 599);
                let status = number.and_then(|number| u16::try_from(number).ok());
                if status.is_some_and(|status| !statuses.contains(&status)) {
                    self.fault(found.span, field, "no request gets this status")
                        .help = Some("a request gets 200 (admitted), 429 or 503".to_owned());
                }
                status.map(Some)
            }
        };
        let retry_after = match fields.take("retry_after") {
            None => Some(None),
            Some(Plain {
                value: PlainValue::Scalar(Value::Null),
                ..
            }) => Some(Some(None)),
            Some(found) => self
                .integer(found, &fields.path_of("retry_after"), 1, u32::MAX.into())
                .and_then(|seconds| u32::try_from(seconds).ok())
                .map(|seconds| Some(Some(seconds))),
        };
        let outcomes_path = fields.path_of("outcomes");
        let outcomes = match fields.take("outcomes") {
            None => Some(None),
            Some(found) => self.list(found, &outcomes_path).and_then(|items| {
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.outcome(item, &format!("{outcomes_path}[{index}]")))
                    .collect::<Option<Vec<_>>>()
                    .map(Some)
            }),
        };
        self.rest(&fields);
        let expect = Expect {
            status: status?,
            retry_after: retry_after?,
            outcomes: outcomes?,
        };
        if expect == Expect::default() {
            self.fault(
                plain.span,
                path,
                "nothing is expected here: the step cannot fail",
            )
            .help = Some("give `status`, `retry_after` or `outcomes`".to_owned());
        }
        Some(expect)
    }

    fn outcome(&mut self, plain: &Plain, path: &str) -> Option<ExpectedOutcome> {
        let mut fields = self.fields(plain, path)?;
        let policy = self.required(&mut fields, "policy");
        let policy = policy.and_then(|found| self.string(found, &fields.path_of("policy")));
        let decision = match fields.take("decision") {
            None => Some(None),
            Some(found) => {
                let words = Decision::ALL.map(|decision| (decision.as_str(), decision));
                self.word(found, &fields.path_of("decision"), &words)
                    .map(Some)
            }
        };
        let reason = match fields.take("reason") {
            None => Some(None),
            Some(found) => {
                let words = Reason::ALL.map(|reason| (reason.as_str(), reason));
                self.word(found, &fields.path_of("reason"), &words)
                    .map(Some)
            }
        };
        let backend_mode = match fields.take("backend_mode") {
            None => Some(None),
            Some(found) => self
                .string(found, &fields.path_of("backend_mode"))
                .map(Some),
        };
        self.rest(&fields);
        Some(ExpectedOutcome {
            policy: policy?,
            decision: decision?,
            reason: reason?,
            backend_mode: backend_mode?,
        })
    }
}

fn quoted(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// A duration such as `250ms`, perhaps negative, in whole milliseconds.
fn duration_ms(text: &str) -> Option<i64> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let duration = humantime::parse_duration(text).ok()?;
    let whole = Duration::from_millis(u64::try_from(duration.as_millis()).ok()?) == duration;
    let millis = i64::try_from(duration.as_millis()).ok().filter(|_| whole)?;
    Some(sign * millis)
}

/// `text` with everything outside of `span` blanked, so that what stands there keeps its lines and columns.
fn blanked(text: &str, span: Span) -> String {
    let range = span.range();
    text.char_indices()
        .map(|(offset, character)| {
            if range.contains(&offset) || matches!(character, '\n' | '\r') {
                character
            } else {
                ' '
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: &str = "{ request: {}, expect: { status: 200 } }";

    #[track_caller]
    fn read_sound(text: &str) -> CaseFile {
        read("a_test.yaml", text.as_bytes(), Limits::default())
            .unwrap_or_else(|unreadable| panic!("{:?}", unreadable.diagnostics))
    }

    #[test]
    fn everything_a_case_may_say_is_read() {
        let file = read_sound(
            r#"
cases:
  - name: all of it
    policy: ../p.yaml
    start: "2027-01-15T08:00:00.5Z"
    steps:
      - at: 250ms
        repeat: 3
        request:
          route: shop
          client_ip: 198.18.0.9
          method: GET
          uri: "/v?team=q#x"
          headers: [[X-Org, kite], [x-org, !!binary "//4="]]
        backend: timeout
        expect:
          status: 503
          retry_after: null
          outcomes:
            - { policy: p, decision: failed_closed, reason: backend_timeout, backend_mode: redis }
            - { policy: q }
      - at: -2s
        request: { headers: { a: b } }
        expect: { retry_after: 7, outcomes: [] }
"#,
        );
        let [case] = file.cases.as_slice() else {
            panic!("{:?}", file.cases);
        };
        assert_eq!((&*case.name, case.line), ("all of it", 3));
        assert_eq!(case.policies, CasePolicies::File("../p.yaml".into()));
        assert_eq!(case.start_unix_ms, 1_800_000_000_500);
        let [first, second] = case.steps.as_slice() else {
            panic!("{:?}", case.steps);
        };
        assert_eq!((first.line, first.at_ms, first.repeat), (7, 250, 3));
        assert_eq!(first.request.route.as_deref(), Some("shop"));
        assert_eq!(first.request.client, ClientAddress::parse("198.18.0.9"));
        assert_eq!(first.request.query(), b"team=q");
        let headers = [
            ("X-Org".to_owned(), b"kite".to_vec()),
            ("x-org".to_owned(), vec![0xff, 0xfe]),
        ];
        assert_eq!(first.request.headers, headers);
        assert_eq!(first.fault, Some(BackendFailure::Timeout));
        assert_eq!(first.expect.status, Some(503));
        assert_eq!(first.expect.retry_after, Some(None));
        let outcomes = first.expect.outcomes.as_deref().expect("they are given");
        assert_eq!(outcomes[0].decision, Some(Decision::FailedClosed));
        assert_eq!(outcomes[0].reason, Some(Reason::BackendTimeout));
        assert_eq!(outcomes[0].backend_mode.as_deref(), Some("redis"));
        assert_eq!((&*outcomes[1].policy, outcomes[1].decision), ("q", None));
        assert_eq!(
            (second.at_ms, second.repeat, second.fault),
            (-2000, 1, None)
        );
        assert_eq!(second.request.client, ClientAddress::Unknown);
        assert_eq!(second.expect.status, None);
        assert_eq!(second.expect.retry_after, Some(Some(7)));
        assert_eq!(second.expect.outcomes, Some(Vec::new()));
    }

    #[test]
    fn an_inline_quota_object_keeps_its_place() {
        let text = format!(
            "cases:\n- name: ä\n  quota:\n    enabled: true\n    policies: []\n  steps: [{STEP}]\n"
        );
        let file = read_sound(&text);
        let CasePolicies::Inline(inline) = &file.cases[0].policies else {
            panic!("{:?}", file.cases);
        };
        let lines: Vec<_> = inline.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            ["", "", "", "    enabled: true", "    policies: []", ""]
        );
    }

    /// Every fault as line, column and message.
    #[track_caller]
    fn check(text: &str, expected: &[(u32, u32, &str)]) {
        let unreadable =
            read("a_test.yaml", text.as_bytes(), Limits::default()).expect_err("it has faults");
        let found: Vec<_> = unreadable
            .diagnostics
            .iter()
            .map(|fault| {
                let place = unreadable.text.place(fault.span.start);
                (place.line, place.column, &*fault.message)
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn faults_have_places() {
        check(
            "",
            &[(1, 1, "the file is empty; a case file holds a list `cases`")],
        );
        check("[]", &[(1, 1, "expected a mapping, found a list")]);
        check("cases: []", &[(1, 8, "there is no case in the list")]);
        check("case: []", &[(1, 1, "there is no field `case` here")]);
        check(
            "cases:\n- name: 5\n  steps: []\n",
            &[
                (
                    2,
                    3,
                    "a case needs `policy` (a path) or `quota` (a quota object)",
                ),
                (2, 9, "expected a string, found a number"),
                (3, 10, "there is no step in the list"),
            ],
        );
        check(
            &format!("cases:\n- {{ name: a, policy: p, quota: {{}}, steps: [{STEP}] }}\n"),
            &[(2, 32, "a case has either `policy` or `quota`, not both")],
        );
    }

    #[test]
    fn faults_of_steps_have_places() {
        #[track_caller]
        fn check_step(step: &str, column: u32, message: &str) {
            let text = format!("cases:\n- name: a\n  policy: p\n  steps:\n  - {{{step}}}\n");
            check(&text, &[(5, column + 5, message)]);
        }
        let ok = "request: {}, expect: {status: 200}";
        check_step(
            &format!("at: soon, {ok}"),
            5,
            "this is no time after the start",
        );
        check_step(
            &format!("at: 0.5, {ok}"),
            5,
            "this is no time after the start",
        );
        check_step(
            &format!("at: 1us, {ok}"),
            5,
            "this is no time after the start",
        );
        check_step(
            &format!("repeat: 0, {ok}"),
            9,
            "expected a whole number from 1 to 1000000",
        );
        check_step(&format!("backend: gone, {ok}"), 10, "unknown word `gone`");
        check_step("expect: {status: 200}", 0, "the field `request` is missing");
        check_step("request: {}", 0, "the field `expect` is missing");
        check_step(
            "request: {}, expect: {}",
            22,
            "nothing is expected here: the step cannot fail",
        );
        check_step(
            "request: {}, expect: {status: 404}",
            31,
            "no request gets this status",
        );
        check_step(
            "request: {uri: 1}, expect: {status: 200}",
            16,
            "expected a string, found a number",
        );
        check_step(
            "request: {headers: [[a]]}, expect: {status: 200}",
            21,
            "expected a pair of name and value, found a list",
        );
        check_step(
            "request: {headers: {a: !!binary x}}, expect: {status: 200}",
            33,
            "this is not base64",
        );
        check_step(
            "request: {}, expect: {outcomes: [{policy: p, reason: backend_timout}]}",
            54,
            "unknown word `backend_timout`",
        );
        check_step(
            "request: {}, expect: {retry_after: 0}",
            36,
            "expected a whole number from 1 to 4294967295",
        );
    }

    #[test]
    fn durations_are_whole_milliseconds() {
        #[track_caller]
        fn check(text: &str, expected: Option<i64>) {
            assert_eq!(duration_ms(text), expected, "{text}");
        }
        check("1s", Some(1000));
        check("250ms", Some(250));
        check("2m", Some(120_000));
        check("1h 1ms", Some(3_600_001));
        check("-1s", Some(-1000));
        check("1us", None);
        check("1", None);
        check("", None);
        check("--1s", None);
    }
}
