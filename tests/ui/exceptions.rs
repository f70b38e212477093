//! The codes that no file in the tree shows: what shows them instead, or why nothing can.

use std::fmt::Write as _;

use quota_compiler::codes;

use crate::case::Case;

/// The code whose text is made here, by [`policies_on_routes_of_their_own`]: the file would fill hundreds of pages.
const GENERATED: &str = "Q0306";

/// Codes that no text is known to give: each names a fault of the compiler, and one that could be shown would be mended. The
/// compiler's own tests cover them from within.
const NOT_SHOWN: &[&str] = &["Q0901"];

/// Codes whose page shows no file that fails as a block of YAML, with the reason.
const PAGE_WITHOUT_FAILING_BLOCK: &[(&str, &str)] = &[
    ("Q0102", "a page is UTF-8"),
    (
        "Q0103",
        "the character would be invisible, or would break the page",
    ),
    ("Q0306", "the file would fill hundreds of pages"),
    ("Q0901", "no file is known"),
];

/// Whether `code` needs no file in `ui/diagnostics`.
pub(crate) fn is_exempt(code: &str) -> bool {
    NOT_SHOWN.contains(&code) || code == GENERATED
}

/// Whether the page of `code` needs no block of YAML that fails.
pub(crate) fn page_has_no_failing_block(code: &str) -> bool {
    PAGE_WITHOUT_FAILING_BLOCK
        .iter()
        .any(|(exempt, _)| *exempt == code)
}

#[test]
fn a_program_may_be_too_large() {
    let case = Case::check("generated.yaml", &policies_on_routes_of_their_own());
    assert_eq!(case.faults(), [GENERATED]);
}

#[test]
fn exceptions_name_codes_there_are() {
    let pages = PAGE_WITHOUT_FAILING_BLOCK.iter().map(|(code, _)| code);
    for code in NOT_SHOWN.iter().chain(pages).chain([&GENERATED]) {
        assert!(codes::find(code).is_some(), "{code}");
    }
}

/// As many policies for one route each as for every route, so that their product is beyond the limit.
fn policies_on_routes_of_their_own() -> Vec<u8> {
    let mut text = "policies:\n".to_owned();
    for index in 1..=4100 {
        for routes in [String::new(), format!("r{index}")] {
            writeln!(
                text,
                "  - {{name: p{index}{routes}, route_allowlist: [{routes}], selector: {{route: true}}, \
                 burst: {{requests: {index}, window_secs: 1}}}}"
            )
            .expect("a string takes everything");
        }
    }
    text.into_bytes()
}
