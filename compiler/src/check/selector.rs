//! Selectors: at least one dimension, each source legal for its dimension, no source in two dimensions.

use super::{Field, Findings, fault_of};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::ir::Selector;
use crate::syntax::quote::{listed, listed_or, quote};
use crate::syntax::raw::{Given, RawPolicy, RawSelector, RawSource, Spanned};
use crate::syntax::source_key::{self, SourceFault, SourceFaultKind};
use crate::terms::{Dimension, Source};

/// The selector of `policy`; `None` when a part of it was reported.
pub(super) fn check(
    policy: &Spanned<RawPolicy>,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<Selector> {
    let field = field.field("selector");
    let given = match &policy.value.selector {
        Given::Faulty => return None,
        Given::Absent => {
            let place = findings.first_line(policy.span);
            report_empty(place, "policy has no `selector`", &field, findings);
            return None;
        }
        Given::Value { value, .. } => value,
    };
    let raw = &given.value;
    let route = super::or_default(&raw.route);
    let dimensions = [
        (Dimension::Tenant, &raw.tenant),
        (Dimension::Token, &raw.token),
        (Dimension::Client, &raw.client),
    ];
    if route == Some(false) && dimensions.iter().all(|(_, source)| source.is_absent()) {
        let place = findings.first_line(given.span);
        report_empty(place, "selector has no dimension", &field, findings);
        return None;
    }
    let sources =
        dimensions.map(|(dimension, source)| check_source(dimension, source, &field, findings));
    report_reuse(raw, &sources, &field, findings);
    let [tenant, token, client] = sources;
    Selector::new(route?, tenant.built()?, token.built()?, client.built()?).ok()
}

fn report_empty(
    place: crate::span::Span,
    message: &str,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    findings.report(
        Diagnostic::new(&codes::EMPTY_SELECTOR, field.to_string(), place, message).with_help(
            "select at least one dimension, such as `tenant: { key: \"header:x-tenant-id\" }` or `route: true`",
        ),
    );
}

/// The source of one dimension.
enum Checked<'a> {
    Absent,
    /// Already reported.
    Faulty,
    Sound {
        dimension: Dimension,
        source: Source,
        given: &'a Spanned<String>,
    },
}

impl Checked<'_> {
    /// The source, `Some(None)` where the dimension is not selected; `None` when it was reported.
    fn built(self) -> Option<Option<Source>> {
        match self {
            Self::Absent => Some(None),
            Self::Faulty => None,
            Self::Sound { source, .. } => Some(Some(source)),
        }
    }
}

fn check_source<'a>(
    dimension: Dimension,
    given: &'a Given<RawSource>,
    selector: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Checked<'a> {
    if given.is_absent() {
        return Checked::Absent;
    }
    let Some(given) = given.value().and_then(|source| source.value.key.value()) else {
        return Checked::Faulty;
    };
    let field = selector.field(dimension.as_str());
    let field = field.field("key");
    let source = match source_key::parse(&given.value) {
        Ok(source) => source,
        Err(fault) => {
            report_fault(&fault, dimension, given, &field, findings);
            return Checked::Faulty;
        }
    };
    if !source.is_legal_for(dimension) {
        let value = given.value.trim();
        let legal_elsewhere = Dimension::ALL
            .into_iter()
            .filter(|other| source.is_legal_for(*other))
            .map(Dimension::as_str);
        let help = format!(
            "{} may fill {}; {}",
            quote(value),
            listed_or(legal_elsewhere),
            sources_for(dimension)
        );
        let mut fault = fault_of(
            &codes::SOURCE_NOT_FOR_DIMENSION,
            &field,
            given,
            format!(
                "source {} is not legal for dimension `{}`",
                quote(value),
                dimension.as_str()
            ),
        );
        fault.span = findings.part(given, &trimmed_range(&given.value));
        findings.report(fault.with_help(help));
        return Checked::Faulty;
    }
    Checked::Sound {
        dimension,
        source,
        given,
    }
}

fn report_fault(
    fault: &SourceFault,
    dimension: Dimension,
    given: &Spanned<String>,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    let part = quote(given.value.get(fault.range.clone()).unwrap_or(&given.value));
    let (code, message, help) = match &fault.kind {
        SourceFaultKind::Blank => (
            &codes::BLANK_SOURCE,
            "source is blank".to_owned(),
            sources_for(dimension),
        ),
        SourceFaultKind::Unknown { nearest } => (
            &codes::UNKNOWN_SOURCE,
            format!("unknown source {part}"),
            nearest.as_ref().map_or_else(
                || sources_for(dimension),
                |nearest| format!("did you mean {}?", quote(nearest)),
            ),
        ),
        SourceFaultKind::NeverIdentity(word) => (
            &codes::SOURCE_NEVER_IDENTITY,
            format!("source `{word}` does not identify anybody, in any dimension"),
            sources_for(dimension),
        ),
        SourceFaultKind::BlankName(kind) => (
            &codes::BLANK_SOURCE_NAME,
            format!("source {part} names no {}", named_thing(kind)),
            format!(
                "write the name after the colon, such as `{kind}:{}`",
                example_name(kind)
            ),
        ),
        SourceFaultKind::BadHeaderName => (
            &codes::BAD_HEADER_NAME,
            format!("{part} is not a header name"),
            "a header name is made of letters, digits and `!#$%&'*+-.^_|~` (RFC 9110)".to_owned(),
        ),
        SourceFaultKind::BadCookieName => (
            &codes::BAD_COOKIE_NAME,
            format!("{part} is not a cookie name"),
            "a cookie name is made of letters, digits and `!#$%&'*+-.^_|~` (RFC 6265)".to_owned(),
        ),
    };
    let mut diagnostic = fault_of(code, field, given, message);
    diagnostic.span = findings.part(given, &fault.range);
    findings.report(diagnostic.with_help(help));
}

/// What the word before a source's colon names.
fn named_thing(kind: &str) -> &'static str {
    match kind {
        "header" => "header",
        "cookie" => "cookie",
        _ => "query parameter",
    }
}

/// A name such as may follow the word before a source's colon.
fn example_name(kind: &str) -> &'static str {
    match kind {
        "header" => "x-tenant-id",
        "cookie" => "session",
        _ => "api_key",
    }
}

/// The sources a dimension takes, as help.
fn sources_for(dimension: Dimension) -> String {
    let examples = [
        Source::Header("<name>".into()),
        Source::Cookie("<name>".into()),
        Source::Query("<name>".into()),
        Source::BearerToken,
        Source::ClientIp,
    ];
    let legal: Vec<String> = examples
        .iter()
        .filter(|source| source.is_legal_for(dimension))
        .map(Source::to_string)
        .collect();
    let legal = listed(legal.iter().map(String::as_str));
    format!("`{}` takes {legal}", dimension.as_str())
}

fn trimmed_range(value: &str) -> std::ops::Range<usize> {
    let start = value.len() - value.trim_start().len();
    start..start + value.trim().len()
}

/// Reports each dimension whose source already fills an earlier one.
fn report_reuse(
    raw: &RawSelector,
    sources: &[Checked<'_>; 3],
    selector: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    for (index, checked) in sources.iter().enumerate() {
        let Checked::Sound {
            dimension,
            source,
            given,
        } = checked
        else {
            continue;
        };
        let earlier = sources
            .iter()
            .take(index)
            .find_map(|earlier| match earlier {
                Checked::Sound {
                    dimension,
                    source: other,
                    given,
                } if other == source => Some((*dimension, *given)),
                Checked::Sound { .. } | Checked::Absent | Checked::Faulty => None,
            });
        let Some((first, first_given)) = earlier else {
            continue;
        };
        let field = selector.field(dimension.as_str());
        let mut fault = fault_of(
            &codes::SOURCE_REUSED,
            &field.field("key"),
            given,
            format!(
                "source {} fills both `{}` and `{}`",
                quote(&source.to_string()),
                first.as_str(),
                dimension.as_str()
            ),
        );
        let mut second = first_given.span;
        // One anchored `{key: …}` may fill both: then the places to tell apart are those where it is used.
        if second == fault.span
            && let (Some(here), Some(there)) = (place_of(raw, *dimension), place_of(raw, first))
        {
            fault.span = findings.first_line(here);
            second = findings.first_line(there);
        }
        findings.report(
            fault
                .with_related(second, format!("first used for `{}` here", first.as_str()))
                .with_help(format!(
                    "give each dimension a source of its own, or remove `{}`",
                    dimension.as_str()
                )),
        );
    }
}

/// Where the `{key: source}` of a dimension stands.
fn place_of(raw: &RawSelector, dimension: Dimension) -> Option<crate::span::Span> {
    let given = match dimension {
        Dimension::Route => return None,
        Dimension::Tenant => &raw.tenant,
        Dimension::Token => &raw.token,
        Dimension::Client => &raw.client,
    };
    given.value().map(|source| source.span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{check, fault, sound};

    fn policy(selector: &str) -> String {
        format!(
            "policies:\n- name: a\n  burst: {{requests: 1, window_secs: 1}}\n  selector: {selector}\n"
        )
    }

    #[track_caller]
    fn check_source(dimension: &str, source: &str, expected: Option<(&str, &str)>) {
        let yaml = policy(&format!("{{{dimension}: {{key: \"{source}\"}}}}"));
        match expected {
            None => {
                sound(&yaml);
            }
            Some((code, part)) => {
                let checked = crate::check::tests::checked(&yaml);
                let found: Vec<_> = checked
                    .diagnostics
                    .iter()
                    .map(|fault| (fault.code.id, checked.text.slice(fault.span)))
                    .collect();
                assert_eq!(found, [(code, part)]);
            }
        }
    }

    #[test]
    fn a_selector_has_a_dimension() {
        check(&policy("{}"), &[("Q0401", 4, 13)]);
        check(&policy("{route: false}"), &[("Q0401", 4, 13)]);
        check(&policy("{tenant: ~, token: null}"), &[("Q0401", 4, 13)]);
        check(
            "policies:\n- name: a\n  burst: {requests: 1, window_secs: 1}\n",
            &[("Q0401", 2, 3)],
        );
        check(&policy("{route: true}"), &[]);
    }

    #[test]
    fn a_dimension_at_fault_is_a_dimension() {
        check(&policy("{route: 7}"), &[("Q0203", 4, 21)]);
        check(&policy("{tenant: 7}"), &[("Q0203", 4, 22)]);
        check(&policy("{tenant: {key: nobody}}"), &[("Q0402", 4, 28)]);
        check(&policy("7"), &[("Q0203", 4, 13)]);
    }

    #[test]
    fn sources_are_legal_where_the_matrix_says() {
        for (source, tenant, token, client) in [
            ("header:x", true, true, true),
            ("cookie:x", true, true, true),
            ("query:x", true, true, true),
            ("bearer_token", true, true, false),
            ("peer_ip", false, false, true),
            ("client_ip", false, false, true),
        ] {
            for (dimension, legal) in [("tenant", tenant), ("token", token), ("client", client)] {
                let fault = (!legal).then_some(("Q0403", source));
                check_source(dimension, source, fault);
            }
        }
    }

    #[test]
    fn each_fault_of_a_source_has_its_code_and_place() {
        check_source("tenant", "  ", Some(("Q0409", "  ")));
        check_source("tenant", " hedaer:x ", Some(("Q0402", "hedaer:x")));
        check_source("tenant", "nobody", Some(("Q0402", "nobody")));
        check_source("client", " Path", Some(("Q0405", "Path")));
        check_source("client", "sticky-cid", Some(("Q0405", "sticky-cid")));
        check_source("tenant", "header: ", Some(("Q0406", "header:")));
        check_source("tenant", "query:", Some(("Q0406", "query:")));
        check_source("tenant", "header: x y", Some(("Q0407", "x y")));
        check_source("tenant", "cookie:a;b", Some(("Q0408", "a;b")));
        check_source("client", " Bearer_Token ", Some(("Q0403", "Bearer_Token")));
    }

    #[test]
    fn a_misspelt_source_is_put_right() {
        let help = |source: &str| fault(&policy(&format!("{{tenant: {{key: '{source}'}}}}"))).4;
        assert_eq!(help("hedaer:x"), "did you mean `header:x`?");
        assert_eq!(
            help("nobody"),
            "`tenant` takes `header:<name>`, `cookie:<name>`, `query:<name>` and `bearer_token`"
        );
    }

    #[test]
    fn a_source_in_the_wrong_dimension_says_where_it_belongs() {
        let (field, _, message, _, help) = fault(&policy("{tenant: {key: peer_ip}}"));
        assert_eq!(field, "policies[0].selector.tenant.key");
        assert_eq!(
            message,
            "source `peer_ip` is not legal for dimension `tenant`"
        );
        assert_eq!(
            help,
            "`peer_ip` may fill `client`; `tenant` takes `header:<name>`, `cookie:<name>`, `query:<name>` and `bearer_token`"
        );
    }

    #[test]
    fn a_source_fills_one_dimension_only() {
        let (field, text, message, related, help) = fault(&policy(
            "{tenant: {key: 'header:X-Id'}, client: {key: ' HEADER: x-id'}}",
        ));
        assert_eq!(field, "policies[0].selector.client.key");
        assert_eq!(text, "' HEADER: x-id'");
        assert_eq!(
            message,
            "source `header:x-id` fills both `tenant` and `client`"
        );
        assert_eq!(related, ["'header:X-Id'"]);
        assert_eq!(
            help,
            "give each dimension a source of its own, or remove `client`"
        );
        let three =
            policy("{tenant: {key: query:a}, token: {key: query:A}, client: {key: query:a}}");
        check(&three, &[("Q0404", 4, 51), ("Q0404", 4, 75)]);
        check(
            &policy("{tenant: {key: query:a}, token: {key: cookie:a}}"),
            &[],
        );
    }

    #[test]
    fn one_anchored_source_in_two_dimensions_is_pointed_at_where_it_is_used() {
        let (_, text, _, related, _) = fault(&policy("{tenant: &s {key: query:a}, token: *s}"));
        assert_eq!(text, "*s");
        assert_eq!(related, ["{key: query:a}"]);
    }

    #[test]
    fn a_source_at_fault_is_not_compared() {
        check(
            &policy("{tenant: {key: client_ip}, client: {key: peer_ip}}"),
            &[("Q0403", 4, 28)],
        );
    }

    #[test]
    fn sound_selectors_arrive() {
        let quota = sound(&policy(
            "{route: true, tenant: {key: ' Header: X-Tenant '}, token: {key: BEARER_TOKEN}, client: {key: peer_ip}}",
        ));
        let selectors: Vec<_> = quota
            .policies
            .iter()
            .map(|policy| &policy.selector)
            .collect();
        let expected = Selector::new(
            true,
            Some(Source::Header("x-tenant".into())),
            Some(Source::BearerToken),
            Some(Source::ClientIp),
        )
        .expect("a legal selector");
        assert_eq!(selectors, [&expected]);
    }
}
