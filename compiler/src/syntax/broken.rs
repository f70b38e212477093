//! Texts that are not YAML: what is wrong in the words of a policy author, and how to read on behind it.
//!
//! The scanner stops at the first problem. Where that lies inside an item of a block list under `policies:`, the item is
//! blanked out (every offset stays the same) and the text is read again, so that the other policies are still checked.

use super::decode::{NESTED_TOO_DEEP_HELP, VARIABLE_HELP, nested_too_deep, variable};
use super::events::Failure;
use super::quote::quote;
use super::secret::is_credential_key;
use super::yaml::{self, Tree};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::span::Span;

/// The most problems of one text that are looked for.
const MAX_ROUNDS: usize = 10;

/// A text as far as it can be read.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) tree: Tree,
    /// Places of list items that were taken out, the dash left in.
    pub(super) skipped: Vec<Span>,
    /// Whether the tree ends before the text does.
    pub(super) truncated: bool,
    /// Why not all of the text is in the tree; empty for a sound text.
    pub(super) faults: Vec<Diagnostic>,
}

/// The tree of `text`, with what is not YAML left out and reported.
pub(super) fn parse(text: &str, max_events: u64) -> Parsed {
    let (tree, failure) = yaml::parse(text, max_events);
    let mut parsed = Parsed {
        tree,
        skipped: Vec::new(),
        truncated: false,
        faults: Vec::new(),
    };
    let mut failure = failure;
    let mut rest = text.to_owned();
    while let Some(problem) = failure.take() {
        parsed.truncated = true;
        let fault = explain(&problem, text);
        let known = parsed
            .skipped
            .iter()
            .any(|skipped| skipped.contains(Span::at(fault.span.start)));
        if known || parsed.faults.len() == MAX_ROUNDS {
            break;
        }
        parsed.faults.push(fault);
        let Failure::Syntax {
            problem,
            at,
            context,
        } = problem
        else {
            break;
        };
        let place = if is_about_context(&problem) {
            context.unwrap_or(at)
        } else {
            at
        };
        let Some(item) = policy_around(&rest, place as usize) else {
            break;
        };
        let Some(blanked) = blank(&rest, item) else {
            break;
        };
        rest = blanked;
        parsed.skipped.push(item);
        (parsed.tree, failure) = yaml::parse(&rest, max_events);
        parsed.truncated = failure.is_some();
    }
    parsed
}

/// Whether the scanner found the problem far behind the place that is wrong, where it began what it could not end.
fn is_about_context(problem: &str) -> bool {
    [
        "',' or ']'",
        "',' or '}'",
        "end of stream",
        "document indicator",
        "expected ':'",
    ]
    .iter()
    .any(|part| problem.contains(part))
}

/// The item of a list under `policies:` that `at` lies in, from behind its dash.
fn policy_around(text: &str, at: usize) -> Option<Span> {
    let mut lines = Lines { text, at: 0 };
    while let Some((_, line)) = lines.next() {
        let is_policies = line
            .trim_start()
            .strip_prefix("policies")
            .and_then(|rest| rest.trim_start().strip_prefix(':'))
            .is_some_and(|rest| rest.trim().is_empty() || rest.trim_start().starts_with('#'));
        if is_policies && let Some(item) = item_around(lines, at) {
            return Some(item);
        }
    }
    None
}

/// The item that `at` lies in, of the list that `lines` begin with.
fn item_around(lines: Lines<'_>, at: usize) -> Option<Span> {
    let mut column = None;
    let mut item = None;
    for (start, line) in lines {
        let content = line.trim_start_matches(' ');
        if content.trim().is_empty() || content.starts_with('#') {
            continue;
        }
        let indent = line.len() - content.len();
        let is_item = content.starts_with("- ") || content.trim_end() == "-";
        let column = *column.get_or_insert(indent);
        if indent > column && item.is_some() {
            continue;
        }
        // A line at or left of the dashes ends the item before it.
        if let Some(begin) = item.take_if(|begin| *begin <= at && at < start) {
            return Some(span(begin, start));
        }
        if indent < column || !is_item {
            return None;
        }
        item = Some(start + indent + 1);
    }
    // The list goes on to the end of the text.
    let end = lines.text.len();
    item.filter(|begin| *begin <= at && at <= end)
        .map(|begin| span(begin, end))
}

/// `text` with everything inside `place` but line breaks made blank; `None` when it is blank already.
fn blank(text: &str, place: Span) -> Option<String> {
    let before = text.get(..place.start as usize)?;
    let inside = text.get(place.range())?;
    let after = text.get(place.end as usize..)?;
    if inside.trim().is_empty() {
        return None;
    }
    let mut blanked = String::with_capacity(text.len());
    blanked.push_str(before);
    for character in inside.chars() {
        if matches!(character, '\n' | '\r') {
            blanked.push(character);
        } else {
            blanked.extend(std::iter::repeat_n(' ', character.len_utf8()));
        }
    }
    blanked.push_str(after);
    Some(blanked)
}

/// The lines of a text with their offsets.
#[derive(Clone, Copy)]
struct Lines<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Iterator for Lines<'t> {
    type Item = (usize, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let length = rest.find('\n').map_or(rest.len(), |newline| newline + 1);
        let start = self.at;
        self.at += length;
        Some((start, rest.get(..length)?))
    }
}

/// The diagnostic of a failure.
fn explain(failure: &Failure, text: &str) -> Diagnostic {
    match failure {
        Failure::TooDeep(place) => {
            Diagnostic::new(&codes::NESTED_TOO_DEEP, "", *place, nested_too_deep())
                .with_help(NESTED_TOO_DEEP_HELP)
        }
        Failure::TooMany(place) => Diagnostic::new(
            &codes::TOO_MANY_EVENTS,
            "",
            *place,
            "the file holds more YAML nodes than are read; what follows is not",
        )
        .with_help("split the file, or raise the limit with `--max-events`"),
        Failure::Syntax {
            problem,
            at,
            context,
        } => {
            let place = Problem {
                text,
                at: *at as usize,
                context: context.map(|context| context as usize),
            };
            place.explain(problem)
        }
    }
}

/// Where the scanner came to a problem.
#[derive(Clone, Copy)]
struct Problem<'t> {
    text: &'t str,
    at: usize,
    /// What it was in the middle of.
    context: Option<usize>,
}

impl Problem<'_> {
    /// The diagnostic for the scanner's own words.
    fn explain(self, words: &str) -> Diagnostic {
        if let Some((place, variable)) = self.variable() {
            // In a URL it may be part of a password.
            let word = self.text.get(..place.start as usize).unwrap_or("");
            let word = word.rsplit(char::is_whitespace).next().unwrap_or("");
            let shown = if word.contains("://") {
                "`${…}`".to_owned()
            } else {
                quote(variable)
            };
            let message = format!("{shown} is not expanded");
            return Diagnostic::new(&codes::UNEXPANDED_VARIABLE, "", place, message)
                .with_help(VARIABLE_HELP);
        }
        match words {
            "mapping values are not allowed in this context" => self.colon(),
            "found character that cannot start any token" => self.bad_start(),
            "found a tab character that violates indentation"
            | "found a tab character where an indentation space is expected" => self.tab(),
            "found unexpected end of stream" | "found unexpected document indicator" => self
                .fault(self.begin(), "the quote that opens here is never closed")
                .with_help("close it, or double it where it is part of the value"),
            "did not find expected ',' or ']'" => self.unclosed("[", "]"),
            "did not find expected ',' or '}'" => self.unclosed("{", "}"),
            "did not find expected key" => self
                .fault(
                    self.character(),
                    "a field of the mapping above is expected here",
                )
                .with_help("check the indentation of this line, and the quotes of the one before"),
            "did not find expected '-' indicator" => {
                self.fault(
                    self.character(),
                    "an item of the list above is expected here",
                )
                .with_help("begin the line with `- `, or indent it as the field before the list is")
            }
            "could not find expected ':'" => self.no_colon(),
            "block sequence entries are not allowed in this context" => self
                .fault(self.character(), "a list item cannot begin here")
                .with_help("put the list on lines of its own, below its field"),
            "found unknown escape character" | "did not find expected hexadecimal number" => self
                .fault(
                    self.character(),
                    "this escape does not exist in double quotes",
                )
                .with_help("use single quotes, or write `\\\\` for a backslash"),
            "did not find expected alphabetic or numeric character" => self
                .fault(
                    self.begin(),
                    format!(
                        "{} here begins an anchor or alias without a name",
                        self.sign()
                    ),
                )
                .with_help("quote the value"),
            "did not find expected node content" if self.here().is_empty() => self
                .fault(self.character(), "the file ends where a value is expected")
                .with_help("close the brackets and braces that are open"),
            "did not find expected node content" => self
                .fault(self.character(), "a value is expected here")
                .with_help("write a value, or remove the comma or bracket before it"),
            "did not find expected <document start>" => self
                .fault(self.line_text(), OUTSIDE)
                .with_help("check the indentation of this line and of those above"),
            "mapping keys are not allowed in this context" => self
                .fault(self.character(), "a field cannot begin here")
                .with_help("quote a value that begins with `? `"),
            "did not find expected comment or line break" => self
                .fault(self.character(), "nothing may follow on this line")
                .with_help("quote a value that begins with `|` or `>`"),
            "found undefined tag handle" => self
                .fault(self.begin(), "the tag is not declared")
                .with_help("quote the value if it begins with `!`"),
            "found incompatible YAML document" => self
                .fault(
                    self.character(),
                    "the file asks for another version of YAML",
                )
                .with_help("remove the line; a policy file is YAML 1.1, as serde_yaml reads it"),
            other => self
                .fault(self.character(), other)
                .with_help("check the quotes and the indentation of this line"),
        }
    }

    /// `key: a: b`, or a field where none may be.
    fn colon(self) -> Diagnostic {
        let (start, line) = self.line();
        let value = line
            .find(": ")
            .map(|colon| start + colon + 2)
            .filter(|value| *value <= self.at);
        let value = value.and_then(|from| {
            let value = self.text.get(from..start + line.len())?.trim_end();
            let blank = value.len() - value.trim_start().len();
            Some((from + blank, value.trim_start()))
        });
        match value {
            Some((from, value)) if !value.is_empty() => {
                let field = line.split(": ").next().unwrap_or("");
                self.fault(
                    span(from, from + value.len()),
                    "a value that contains `: ` must be quoted",
                )
                .with_help(if is_credential_key(field) {
                    "quote the value".to_owned()
                } else {
                    format!("write {}", quote(&format!("\"{value}\"")))
                })
            }
            _ => match self.glued_line_above(start) {
                Some(place) => self
                    .fault(place, NO_COLON)
                    .with_help(SPACE_AFTER_COLON_HELP),
                None => self
                    .fault(self.before(start), "a field cannot begin here")
                    .with_help("check the indentation of this line and of the one above"),
            },
        }
    }

    /// The line above the one at `start`, when it is `field:value`, which makes the two lines one value.
    fn glued_line_above(&self, start: usize) -> Option<Span> {
        let above = self.text.get(..start)?.trim_end_matches(['\n', '\r']);
        let from = above.rfind(['\n', '\r']).map_or(0, |newline| newline + 1);
        let line = above.get(from..)?;
        let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
        let word = line.trim();
        let is_beside = indent(line) == indent(self.text.get(start..)?);
        (is_beside && is_glued(word))
            .then(|| span(from + indent(line), from + indent(line) + word.len()))
    }

    fn bad_start(self) -> Diagnostic {
        if self.here().starts_with('\t') {
            return self.tab();
        }
        let sign = self.sign();
        self.fault(
            self.character(),
            format!("a value cannot begin with {sign}"),
        )
        .with_help("quote the value")
    }

    fn tab(self) -> Diagnostic {
        self.fault(self.character(), "a tab is used for indentation")
            .with_help("indent with spaces")
    }

    /// What stands on the line of the problem, from there on.
    fn line_text(self) -> Span {
        let line = self.here().lines().next().unwrap_or("");
        span(self.at, self.at + line.trim_end().len())
    }

    fn unclosed(self, open: &str, close: &str) -> Diagnostic {
        self.fault(
            self.begin(),
            format!("the `{open}` that opens here is not closed"),
        )
        .with_related(
            self.character(),
            format!("`,` or `{close}` is expected here"),
        )
        .with_help(format!(
            "close it with `{close}`; quote a value that holds `{open}`"
        ))
    }

    /// A word that should have been a field.
    fn no_colon(self) -> Diagnostic {
        let from = self.context.unwrap_or(self.at);
        let word = self.text.get(from..).unwrap_or("");
        let word = word.lines().next().unwrap_or("").trim_end();
        let fault = self.fault(span(from, from + word.len()), NO_COLON);
        fault.with_help(if is_glued(word) {
            SPACE_AFTER_COLON_HELP
        } else {
            "write `field: value`"
        })
    }

    /// `${…}`, which is a scalar outside flow lists and mappings alone.
    fn variable(&self) -> Option<(Span, &str)> {
        let start = self.at.checked_sub(1)?;
        let variable = variable(self.text.get(start..)?.lines().next()?)?;
        let at_the_problem = self.text.get(start..)?.starts_with(variable);
        at_the_problem.then_some((span(start, start + variable.len()), variable))
    }

    fn fault(self, place: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(&codes::YAML_SYNTAX, "", place, message)
    }

    fn here(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// The character at the problem, as a message shows it.
    fn sign(self) -> String {
        let first = self.text.get(self.begin().range()).unwrap_or("");
        let here: String = self.here().chars().take(1).collect();
        let sign = if self.context.is_some() && matches!(first, "*" | "&") {
            first
        } else {
            &here
        };
        if sign == "`" {
            return "a backtick".to_owned();
        }
        quote(sign)
    }

    /// The place of the character at the problem; the end of the text before it when nothing is left.
    fn character(self) -> Span {
        let length = self.here().chars().next().map_or(0, char::len_utf8);
        span(self.at, self.at + length)
    }

    /// The place of the character that begins what the scanner could not end.
    fn begin(self) -> Span {
        let at = self.context.unwrap_or(self.at);
        Self { at, ..self }.character()
    }

    /// What stands between `start` and the problem, blanks left out; the problem itself where nothing does.
    fn before(self, start: usize) -> Span {
        let before = self.text.get(start..self.at).unwrap_or("");
        let word = before.trim();
        if word.is_empty() {
            return self.character();
        }
        let from = start + before.len() - before.trim_start().len();
        span(from, from + word.len())
    }

    /// The line of the problem, and where it starts.
    fn line(&self) -> (usize, &str) {
        let start = self
            .text
            .get(..self.at)
            .and_then(|before| before.rfind(['\n', '\r']))
            .map_or(0, |newline| newline + 1);
        let line = self.text.get(start..).unwrap_or("");
        (start, line.lines().next().unwrap_or(""))
    }
}

/// Something behind the end of the document.
pub(super) const OUTSIDE: &str = "this does not belong to the document above";
const NO_COLON: &str = "there is no `: ` behind this field";
const SPACE_AFTER_COLON_HELP: &str = "put a space after the colon";

/// Whether `line` is a field and a value without the space between, which is one word: `a:1`.
fn is_glued(line: &str) -> bool {
    let is_name = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    line.split_once(':').is_some_and(|(name, value)| {
        is_name(name) && !value.is_empty() && !value.starts_with([' ', '/'])
    }) && !line.contains(": ")
}

fn span(start: usize, end: usize) -> Span {
    let offset = |at| u32::try_from(at).unwrap_or(u32::MAX);
    Span::new(offset(start), offset(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what is reported, as `text of the place: message`, and how many list items were taken out.
    #[track_caller]
    fn check(text: &str, expected: &[&str], skipped: usize) {
        let parsed = parse(text, 10_000);
        let found: Vec<String> = parsed
            .faults
            .iter()
            .map(|fault| {
                let part = text.get(fault.span.range()).expect("inside the text");
                format!("{part}: {}", fault.message)
            })
            .collect();
        assert_eq!(found, expected);
        assert_eq!(parsed.skipped.len(), skipped);
    }

    #[test]
    fn problems_are_put_in_words_an_author_knows() {
        check(
            "a: header: x\n",
            &["header: x: a value that contains `: ` must be quoted"],
            0,
        );
        check("a:\n\t b: 1\n", &["\t: a tab is used for indentation"], 0);
        check(
            "a: [1, 2\nb: 3\n",
            &["[: the `[` that opens here is not closed"],
            0,
        );
        check(
            "a: {b: 1\nc: 3\n",
            &["{: the `{` that opens here is not closed"],
            0,
        );
        check("a: @b\n", &["@: a value cannot begin with `@`"], 0);
        check("a: `b`\n", &["`: a value cannot begin with a backtick"], 0);
        check(
            "a: \"b\n",
            &["\": the quote that opens here is never closed"],
            0,
        );
        check(
            "a: 1\nb:2\n",
            &["b:2: there is no `: ` behind this field"],
            0,
        );
        check(
            "a:\n  b:2\n  c: 3\n",
            &["b:2: there is no `: ` behind this field"],
            0,
        );
        check("a: - b\n", &["-: a list item cannot begin here"], 0);
        check(
            "{a: 1}\nb: 2\n",
            &["b: 2: this does not belong to the document above"],
            0,
        );
        check(
            "a: [b,\n",
            &[": the file ends where a value is expected"],
            0,
        );
        check("a: [b, }\n", &["}: a value is expected here"], 0);
        check("a: ? b\n", &["?: a field cannot begin here"], 0);
        check("a: |b\n", &["b: nothing may follow on this line"], 0);
        check(
            "a: \"\\q\"\n",
            &["\\: this escape does not exist in double quotes"],
            0,
        );
        check(
            "a: *\n",
            &["*: `*` here begins an anchor or alias without a name"],
            0,
        );
        check("a: 1\n  b: 2\n", &["b: a field cannot begin here"], 0);
        check(
            "%YAML 3.0\n---\na",
            &["%: the file asks for another version of YAML"],
            0,
        );
    }

    #[test]
    fn reading_goes_on_behind_a_broken_policy() {
        let text = "policies: # all\n- name: a: b\n  x: 1\n\n- name: b\n- name: [c\n- {d: e}\nenabled: true\n";
        check(
            text,
            &[
                "a: b: a value that contains `: ` must be quoted",
                "[: the `[` that opens here is not closed",
            ],
            2,
        );
        assert!(!parse(text, 1000).truncated);
        check(
            "q:\n  policies:\n    - name: \"a\n    - name: b\n",
            &["\": the quote that opens here is never closed"],
            1,
        );
        // Outside a list of policies nothing can be left out.
        check(
            "a: b: c\npolicies:\n- name: d: e\n",
            &["b: c: a value that contains `: ` must be quoted"],
            0,
        );
    }

    #[test]
    fn rounds_are_bounded() {
        let text = format!("policies:\n{}", "- a: b: c\n".repeat(100));
        assert_eq!(parse(&text, 10_000).faults.len(), MAX_ROUNDS);
    }

    #[test]
    fn bounds_are_reported_where_they_are_passed() {
        check(
            &"[".repeat(200),
            &["[: lists and mappings nest deeper than 128 levels here"],
            0,
        );
        let parsed = parse("[a, b]", 3);
        assert_eq!(parsed.faults[0].code.id, "Q0106");
    }
}
