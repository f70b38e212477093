//! `quotac explain`, `print`, `schema` and `test`: what they write where, and how they end. What they write is tested elsewhere.

use quota_compiler::codes;
use serde_json::Value;

use super::{BAD, DOUBTFUL, Folder, GOOD};

#[test]
fn a_page_is_found_by_code_and_by_name() {
    let folder = Folder::new([]);
    let page = folder.run(["explain", "--code", "Q0501"]);
    page.ended(0, "");
    assert!(
        page.stdout.starts_with("# Q0501 burst-not-shorter\n"),
        "{}",
        page.stdout
    );
    for code in ["q0501", "burst-not-shorter", " Q0501 "] {
        assert_eq!(
            folder.run(["explain", "--code", code]).stdout,
            page.stdout,
            "{code}"
        );
    }
}

#[test]
fn a_code_there_is_not_has_no_page() {
    let folder = Folder::new([]);
    for (code, said) in [
        (
            "burst-not-shortr",
            "error: there is no diagnostic code `burst-not-shortr`; did you mean `Q0501` (burst-not-shorter)?\n",
        ),
        (
            "Q9999",
            "error: there is no diagnostic code `Q9999`; `quotac explain --list` shows them all\n",
        ),
    ] {
        let run = folder.run(["explain", "--code", code]);
        run.ended(2, said);
        assert_eq!(run.stdout, "");
    }
    assert_eq!(folder.run(["explain"]).code, Some(2));
}

#[test]
fn the_list_has_a_line_for_each_code() {
    let run = Folder::new([]).run(["explain", "--list"]);
    run.ended(0, "");
    let codes = run
        .stdout
        .lines()
        .map(|line| line.split(' ').next().unwrap_or_default());
    assert!(
        codes.eq(codes::ALL.iter().map(|row| row.id)),
        "{}",
        run.stdout
    );
}

#[test]
fn a_program_goes_to_standard_output_and_diagnostics_do_not() {
    let folder = Folder::new([
        ("good.yaml", GOOD),
        ("bad.yaml", BAD),
        ("doubtful.yaml", DOUBTFUL),
    ]);
    let run = folder.run(["print", "good.yaml"]);
    run.ended(0, "");
    assert!(run.stdout.contains("per-tenant"), "{}", run.stdout);
    assert_eq!(
        folder
            .run_with_input(["print", "-"], GOOD.as_bytes())
            .stdout,
        run.stdout
    );

    let run = folder.run(["print", "doubtful.yaml"]);
    assert_eq!(run.code, Some(0));
    assert!(
        run.stderr.starts_with("warning[Q0614]") && !run.stdout.contains("warning"),
        "{run:?}"
    );

    let run = folder.run(["print", "bad.yaml"]);
    assert_eq!((run.code, &*run.stdout), (Some(1), ""));
    assert!(run.stderr.starts_with("error[Q0503]"), "{}", run.stderr);

    folder.run(["print", "lost.yaml"]).ended(
        2,
        "error: cannot read `lost.yaml`: No such file or directory (os error 2)\n",
    );
}

#[test]
fn the_schema_is_a_document() {
    let run = Folder::new([]).run(["schema"]);
    run.ended(0, "");
    let schema: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
}

#[test]
fn test_cases_pass_fail_or_do_not_run() {
    let case = |status: u16| {
        format!(
            "cases:\n  - name: the first of a tenant\n    policy: p.yaml\n    steps:\n      - at: 0\n        \
             request: {{ headers: [[x-tenant-id, kite]] }}\n        expect: {{ status: {status} }}\n"
        )
    };
    let (passes, fails) = (case(200), case(429));
    let enabled = format!("enabled: true\n{GOOD}");
    let folder = Folder::new([
        ("p.yaml", &enabled),
        ("passes_test.yaml", &passes),
        ("sub/p.yaml", &enabled),
        ("sub/fails_test.yaml", &fails),
        ("lost/policies_test.yaml", &passes),
        ("broken/cases_test.yaml", "cases: [\n"),
    ]);
    let summary = "ran 1 case of 1 file: 1 passed, 0 failed, 0 could not be run\n";
    folder.run(["test", "passes_test.yaml"]).ended(0, summary);
    let run = folder.run(["test", "sub"]);
    run.ended(
        1,
        "ran 1 case of 1 file: 0 passed, 1 failed, 0 could not be run\n",
    );
    assert!(
        run.stdout.contains("the first of a tenant"),
        "{}",
        run.stdout
    );
    folder.run(["test", "lost"]).ended(
        2,
        "ran 1 case of 1 file: 0 passed, 0 failed, 1 could not be run\n",
    );
    let run = folder.run(["test", "broken"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stdout.starts_with("error[Q0701]"), "{}", run.stdout);
    assert_eq!(folder.run(["test", "."]).code, Some(2));
    Folder::new([])
        .run(["test", "."])
        .ended(2, "error: nothing to test: no *_test.yaml file was found\n");
}

#[test]
fn the_version_is_the_one_of_the_package() {
    let run = Folder::new([]).run(["--version"]);
    run.ended(0, "");
    assert_eq!(
        run.stdout,
        format!("quotac {}\n", env!("CARGO_PKG_VERSION"))
    );
}
