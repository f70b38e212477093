//! What failed, expected and actual side by side.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::run::{Actual, StepFailure};
use super::{Case, Expect};

/// The failure of one step of `case` in the file `name`: where it stands, what was expected, what happened.
#[must_use]
pub fn failure(name: &str, case: &Case, failure: &StepFailure) -> String {
    let mut text = String::new();
    let Some(step) = case.steps.get(failure.step) else {
        return text;
    };
    let repetition = if step.repeat > 1 {
        format!(", repetition {} of {}", failure.repetition, step.repeat)
    } else {
        String::new()
    };
    // Writing to a string does not fail, here and below.
    let _infallible = writeln!(
        text,
        "{name}:{}: case `{}` failed at step {} ({} ms after the start{repetition})",
        step.line,
        case.name.escape_debug(),
        failure.step + 1,
        step.at_ms,
    );
    match &failure.actual {
        Ok(actual) => text.push_str(&side_by_side(&rows(&step.expect, actual))),
        Err(why) => {
            let _infallible = writeln!(text, "  {why}");
        }
    }
    text
}

/// What is checked: name, expected, actual.
fn rows(expect: &Expect, actual: &Actual) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    let row = |name: &str, expected: String, actual: String| [name.to_owned(), expected, actual];
    if let Some(status) = expect.status {
        rows.push(row("status", status.to_string(), actual.status.to_string()));
    }
    if let Some(seconds) = expect.retry_after {
        let shown =
            |seconds: Option<u32>| seconds.map_or("none".to_owned(), |seconds| seconds.to_string());
        rows.push(row(
            "retry_after",
            shown(seconds),
            shown(actual.retry_after),
        ));
    }
    let actual_lines: Vec<String> = actual
        .outcomes
        .iter()
        .map(|outcome| {
            format!(
                "{} {} {} {}",
                outcome.policy.escape_debug(),
                outcome.decision.as_str(),
                outcome.reason.as_str(),
                outcome.backend_mode
            )
        })
        .collect();
    let expected_lines: Vec<String> = match &expect.outcomes {
        // Shown all the same: they tell why the status is what it is.
        None => vec!["(not checked)".to_owned(); actual_lines.len()],
        Some(outcomes) => outcomes
            .iter()
            .map(|outcome| {
                let any = "*";
                format!(
                    "{} {} {} {}",
                    outcome.policy.escape_debug(),
                    outcome.decision.map_or(any, |decision| decision.as_str()),
                    outcome.reason.map_or(any, |reason| reason.as_str()),
                    outcome.backend_mode.as_deref().unwrap_or(any)
                )
            })
            .collect(),
    };
    let count = expected_lines.len().max(actual_lines.len());
    if count == 0 {
        rows.push(row("outcomes", "none".to_owned(), "none".to_owned()));
    }
    for index in 0..count {
        let line = |lines: &[String]| {
            lines
                .get(index)
                .cloned()
                .unwrap_or_else(|| "none".to_owned())
        };
        rows.push(row(
            &format!("outcomes[{index}]"),
            line(&expected_lines),
            line(&actual_lines),
        ));
    }
    rows
}

fn side_by_side(rows: &[[String; 3]]) -> String {
    let width = |column: usize, title: &str| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([title.width()]).max().unwrap_or(0)
    };
    let (names, expected) = (width(0, ""), width(1, "expected"));
    let mut text = String::new();
    let pad =
        |cell: &str, to: usize| format!("{cell}{}", " ".repeat(to.saturating_sub(cell.width())));
    let mut line = |cells: [&str; 3]| {
        let joined = format!(
            "  {}  {}  {}",
            pad(cells[0], names),
            pad(cells[1], expected),
            cells[2]
        );
        text.push_str(joined.trim_end());
        text.push('\n');
    };
    line(["", "expected", "actual"]);
    for [name, expected, actual] in rows {
        line([name, expected, actual]);
    }
    text
}

#[cfg(test)]
mod tests {
    use quota_compiler::Limits;
    use quota_runtime::outcome::{Decision, Reason};

    use super::*;
    use crate::cases::read::read;
    use crate::cases::run::ActualOutcome;

    #[test]
    fn expected_and_actual_stand_side_by_side() {
        let text = r#"cases:
  - name: "two\nlines"
    policy: p.yaml
    steps:
      - request: {}
        expect: { status: 200 }
      - at: 1s
        repeat: 2
        request: {}
        expect:
          status: 200
          retry_after: 8
          outcomes: [{ policy: größe, decision: allowed }, { policy: 日本 }]
"#;
        let file = read("a_test.yaml", text.as_bytes(), Limits::default()).expect("it can be read");
        let failed = StepFailure {
            step: 1,
            repetition: 2,
            actual: Ok(Actual {
                status: 429,
                retry_after: None,
                outcomes: vec![ActualOutcome {
                    policy: "größe".to_owned(),
                    decision: Decision::Denied,
                    reason: Reason::SelectorIdentityMissing,
                    backend_mode: "in_memory".to_owned(),
                }],
            }),
        };
        let expected = "\
a_test.yaml:7: case `two\\nlines` failed at step 2 (1000 ms after the start, repetition 2 of 2)
               expected           actual
  status       200                429
  retry_after  8                  none
  outcomes[0]  größe allowed * *  größe denied selector_identity_missing in_memory
  outcomes[1]  日本 * * *         none
";
        assert_eq!(failure("a_test.yaml", &file.cases[0], &failed), expected);
    }
}
