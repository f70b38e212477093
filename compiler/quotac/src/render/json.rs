//! The JSON report: one document, stable. Lines and columns count from 1, columns in Unicode scalar values; an end is the
//! place just past the last character.

use quota_compiler::diagnostic::Diagnostic;
use quota_compiler::span::PolicyText;
use serde::Serialize;
use serde_json::Value;

use super::{Counts, FileReport};

/// The version of the report's shape.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    files: Vec<File<'a>>,
    summary: Summary,
}

#[derive(Serialize)]
struct File<'a> {
    path: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    program_digest: Option<&'a str>,
    diagnostics: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    message: &'a str,
    field: &'a str,
    line: u32,
    column: u32,
    end_line: u32,
    end_column: u32,
    related: Vec<RelatedEntry<'a>>,
    help: Option<&'a str>,
}

#[derive(Serialize)]
struct RelatedEntry<'a> {
    message: &'a str,
    line: u32,
    column: u32,
}

#[derive(Serialize)]
struct Summary {
    files: usize,
    errors: usize,
    warnings: usize,
    notes: usize,
}

/// The document about `reports`, with a line break at its end.
///
/// # Errors
///
/// Those of `serde_json`, which for these types do not occur.
pub fn render(reports: &[FileReport]) -> Result<String, serde_json::Error> {
    let counts = Counts::of(reports);
    let document = Document {
        version: VERSION,
        files: reports.iter().map(file).collect(),
        summary: Summary {
            files: counts.files,
            errors: counts.errors,
            warnings: counts.warnings,
            notes: counts.notes,
        },
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}

/// The list of `diagnostics` alone, as it stands in the document.
#[must_use]
pub fn diagnostics(text: &PolicyText, diagnostics: &[Diagnostic]) -> Value {
    diagnostics
        .iter()
        .map(|diagnostic| {
            // Strings, numbers and lists of them: turning them into a value does not fail.
            serde_json::to_value(entry(text, diagnostic)).unwrap_or_default()
        })
        .collect()
}

fn file(report: &FileReport) -> File<'_> {
    File {
        path: report.text.name(),
        ok: report.ok,
        program_digest: report.program_digest.as_deref(),
        diagnostics: report
            .diagnostics
            .iter()
            .map(|diagnostic| entry(&report.text, diagnostic))
            .collect(),
    }
}

fn entry<'a>(text: &PolicyText, diagnostic: &'a Diagnostic) -> Entry<'a> {
    let start = text.place(diagnostic.span.start);
    let end = text.place(diagnostic.span.end);
    Entry {
        code: diagnostic.code.id,
        name: diagnostic.code.name,
        severity: diagnostic.severity.as_str(),
        message: &diagnostic.message,
        field: &diagnostic.field,
        line: start.line,
        column: start.column,
        end_line: end.line,
        end_column: end.column,
        related: diagnostic
            .related
            .iter()
            .map(|related| {
                let place = text.place(related.span.start);
                RelatedEntry {
                    message: &related.message,
                    line: place.line,
                    column: place.column,
                }
            })
            .collect(),
        help: diagnostic.help.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use quota_compiler::codes;
    use quota_compiler::span::Span;

    use super::*;

    #[test]
    fn the_document_has_the_fields_it_promises() {
        let text = PolicyText::new("p.yaml", "名: 1\r\nb: [2,\n 3]\n");
        let diagnostic = Diagnostic::new(
            &codes::WRONG_TYPE,
            "policies[0].b",
            Span::new(11, 18),
            "the message",
        )
        .with_related(Span::new(5, 6), "the other place");
        let failed = FileReport {
            ok: false,
            program_digest: None,
            text,
            diagnostics: vec![diagnostic],
        };
        let passed = FileReport {
            ok: true,
            program_digest: Some("ab".repeat(32)),
            text: PolicyText::new("dir/q.yaml", "policies: []\n"),
            diagnostics: Vec::new(),
        };
        let document = render(&[failed, passed]).expect("JSON");
        expect![[r#"
            {
              "version": 1,
              "files": [
                {
                  "path": "p.yaml",
                  "ok": false,
                  "diagnostics": [
                    {
                      "code": "Q0203",
                      "name": "wrong-type",
                      "severity": "error",
                      "message": "the message",
                      "field": "policies[0].b",
                      "line": 2,
                      "column": 4,
                      "end_line": 3,
                      "end_column": 4,
                      "related": [
                        {
                          "message": "the other place",
                          "line": 1,
                          "column": 4
                        }
                      ],
                      "help": null
                    }
                  ]
                },
                {
                  "path": "dir/q.yaml",
                  "ok": true,
                  "program_digest": "abababababababababababababababababababababababababababababababab",
                  "diagnostics": []
                }
              ],
              "summary": {
                "files": 2,
                "errors": 1,
                "warnings": 0,
                "notes": 0
              }
            }
        "#]].assert_eq(&document);
    }

    #[test]
    fn nothing_checked_is_a_document_too() {
        expect![[r#"
            {
              "version": 1,
              "files": [],
              "summary": {
                "files": 0,
                "errors": 0,
                "warnings": 0,
                "notes": 0
              }
            }
        "#]]
        .assert_eq(&render(&[]).expect("JSON"));
    }
}
