//! Every diagnostic code has its page, its case and its place in the book.

use quota_compiler::codes::ALL;

use super::{files, none, text};

#[test]
fn codes_are_sorted_and_given_once() {
    let ids: Vec<_> = ALL.iter().map(|code| code.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let mut names: Vec<_> = ALL.iter().map(|code| code.name).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
}

#[test]
fn every_code_has_a_page_of_its_own() {
    let mut faults = Vec::new();
    for code in ALL {
        let title = format!("# {} {}\n", code.id, code.name);
        if !code.page.starts_with(&title) {
            faults.push(format!(
                "{}: its page does not begin with its code and name",
                code.id
            ));
        }
        if code.page.lines().count() < 8 {
            faults.push(format!("{}: its page says nothing", code.id));
        }
        if text(&format!("compiler/explain/{}.md", code.id)) != code.page {
            faults.push(format!("{}: another file's page", code.id));
        }
    }
    let pages = files("compiler/explain", ".md").len();
    assert_eq!(pages, ALL.len(), "pages and codes");
    none(&faults);
}

#[test]
fn every_code_has_a_case() {
    let cases = files("tests/ui/diagnostics", ".stderr");
    // Those that no file yields say there why, and how they are tested.
    let exceptions = text("tests/ui/exceptions.rs");
    let faults: Vec<_> = ALL
        .iter()
        .filter(|code| {
            let prefix = format!("tests/ui/diagnostics/{}-", code.id);
            let has_file = cases.iter().any(|case| case.starts_with(&prefix));
            !has_file && !exceptions.contains(&format!("\"{}\"", code.id))
        })
        .map(|code| format!("{} {}: has no case", code.id, code.name))
        .collect();
    none(&faults);
}

#[test]
fn the_book_lists_every_code() {
    let chapter = text("book/src/diagnostics.md");
    let mut faults = Vec::new();
    for code in ALL {
        let row = format!(
            "| [{}](#{}-{}) | `{}` | {} | {} |",
            code.id,
            code.id.to_ascii_lowercase(),
            code.name,
            code.name,
            code.severity.as_str(),
            code.summary
        );
        if !chapter.contains(&row) {
            faults.push(format!("the index lacks: {row}"));
        }
        let page = format!("{{{{#include ../../compiler/explain/{}.md}}}}", code.id);
        if !chapter.contains(&page) {
            faults.push(format!("the chapter lacks: {page}"));
        }
    }
    none(&faults);
}

#[test]
fn the_book_lists_where_we_are_stricter() {
    let chapter = text("book/src/decisions.md");
    let section = chapter
        .split("## Stricter than the YAML reader")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the section is there");
    let listed: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("| `Q"))
        .collect();
    let strict = quota_compiler::syntax::STRICTER;
    assert_eq!(listed.len(), strict.len(), "{listed:?}");
    for stricter in strict {
        let start = format!("| `{}` {} |", stricter.code.id, stricter.code.name);
        assert!(
            listed.iter().any(|line| line.starts_with(&start)),
            "{start}"
        );
    }
}
