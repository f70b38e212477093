//! `quotac check`.

use serde_json::{Value, json};

use super::{BAD, DOUBTFUL, Folder, GOOD};

#[test]
fn a_file_without_fault_is_passed_in_silence() {
    let run = Folder::new([("p.yaml", GOOD)]).run(["check", "p.yaml"]);
    run.ended(0, "checked 1 file: 0 errors, 0 warnings, 0 notes\n");
    assert_eq!(run.stdout, "");
}

#[test]
fn errors_are_problems() {
    let run = Folder::new([("p.yaml", BAD)]).run(["check", "p.yaml"]);
    run.ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    expect_test::expect![[r#"
        error[Q0503]: limit of 0 requests admits nothing
         --> p.yaml:4:24
          |
        4 |     burst: { requests: 0, window_secs: 1 }
          |                        ^
          |
          = help: give a limit of at least 1, or remove the window

        to read more: quotac explain --code Q0503
    "#]]
    .assert_eq(&run.stdout);
}

#[test]
fn warnings_are_problems_only_where_they_are_denied() {
    let folder = Folder::new([("p.yaml", DOUBTFUL)]);
    let summary = "checked 1 file: 0 errors, 1 warning, 0 notes\n";
    let run = folder.run(["check", "p.yaml"]);
    run.ended(0, summary);
    assert!(run.stdout.starts_with("warning[Q0614]"), "{}", run.stdout);
    folder
        .run(["check", "--deny-warnings", "p.yaml"])
        .ended(1, summary);
    let run = folder.run(["check", "--deny-warnings", "--format", "json", "p.yaml"]);
    run.ended(1, summary);
    assert_eq!(document(&run.stdout)["files"][0]["ok"], false);
}

#[test]
fn notes_are_never_problems() {
    let text = "backend: { kind: redis, url: \"redis://localhost\", cluster: true }\n";
    Folder::new([("p.yaml", text)])
        .run(["check", "--no-plugins", "--deny-warnings", "p.yaml"])
        .ended(0, "checked 1 file: 0 errors, 0 warnings, 1 note\n");
}

#[test]
fn a_directory_is_searched_and_what_is_no_policy_file_is_passed_over() {
    let folder = Folder::new([
        ("b/bad.yml", BAD),
        ("a.yaml", GOOD),
        ("a_test.yaml", "cases: []\n"),
        ("compose.yaml", "services: {}\n"),
        ("empty.yaml", ""),
        ("notes.txt", BAD),
        (".hidden/p.yaml", BAD),
    ]);
    let run = folder.run(["check", ".", "--format", "json"]);
    run.ended(
        1,
        "checked 2 files: 1 error, 0 warnings, 0 notes (3 files passed over: test cases, or no quota object)\n",
    );
    let document = document(&run.stdout);
    assert_eq!(document["files"][0]["path"], "./a.yaml");
    assert_eq!(document["files"][1]["path"], "./b/bad.yml");
}

#[test]
fn what_looks_like_a_policy_file_is_not_passed_over() {
    let run = Folder::new([("p.yaml", "polices: []\n")]).run(["check", "."]);
    run.ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    assert!(run.stdout.starts_with("error[Q0109]"), "{}", run.stdout);
}

#[test]
fn a_file_given_by_name_must_be_a_policy_file() {
    let folder = Folder::new([("compose.yaml", "services: {}\n"), ("empty.yaml", "")]);
    for file in ["compose.yaml", "empty.yaml"] {
        folder
            .run(["check", file])
            .ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    }
}

#[test]
fn nothing_to_check_is_no_success() {
    let folder = Folder::new([("a_test.yaml", "cases: []\n"), ("sub/notes.txt", "")]);
    folder
        .run(["check", "sub"])
        .ended(2, "error: nothing to check: no policy file was found\n");
    let run = folder.run(["check", "--format", "json", "."]);
    run.ended(
        2,
        "error: nothing to check: no policy file was found (1 file passed over: test cases, or no quota object)\n",
    );
    assert_eq!(document(&run.stdout)["files"], json!([]));
}

#[test]
fn what_cannot_be_read_outweighs_what_was_found_in_the_rest() {
    let folder = Folder::new([
        ("good.yaml", GOOD),
        ("bad.yaml", BAD),
        ("folder.yaml/p.yaml", GOOD),
    ]);
    let run = folder.run(["check", "good.yaml", "lost.yaml", "bad.yaml"]);
    run.ended(
        2,
        "error: cannot read `lost.yaml`: No such file or directory (os error 2)\n\
         checked 2 files: 1 error, 0 warnings, 0 notes (1 path could not be read)\n",
    );
    assert!(run.stdout.starts_with("error[Q0503]"), "{}", run.stdout);
    let run = folder.run(["check", "--format", "json", "lost.yaml"]);
    assert_eq!(run.code, Some(2));
    assert_eq!(document(&run.stdout)["summary"]["files"], 0);
}

#[test]
fn standard_input_is_a_file_without_a_name() {
    let run = Folder::new([]).run_with_input(["check", "-"], BAD.as_bytes());
    run.ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    assert!(run.stdout.contains("--> <stdin>:4:24\n"), "{}", run.stdout);
}

#[test]
fn bad_usage_is_told_from_problems() {
    let folder = Folder::new([("p.yaml", GOOD)]);
    for arguments in [
        &["check"][..],
        &["check", "--no-such-option", "p.yaml"],
        &["check", "--format", "xml", "p.yaml"],
        &["check", "--max-bytes", "many", "p.yaml"],
        &["no-such-command"],
        &[],
    ] {
        let run = folder.run(arguments);
        assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{arguments:?}");
        assert!(run.stderr.contains("--help"), "{}", run.stderr);
    }
}

#[test]
fn bounds_are_options() {
    let folder = Folder::new([("p.yaml", GOOD)]);
    let size = GOOD.len().to_string();
    folder
        .run(["check", "--max-bytes", &size, "p.yaml"])
        .ended(0, "checked 1 file: 0 errors, 0 warnings, 0 notes\n");
    let run = folder.run([
        "check",
        "--max-bytes",
        &(GOOD.len() - 1).to_string(),
        "p.yaml",
    ]);
    assert_eq!(
        codes(
            &folder
                .run(["check", "--format=json", "--max-bytes=100", "p.yaml"])
                .stdout
        ),
        ["Q0101"]
    );
    assert_eq!(run.code, Some(1));
    assert_eq!(
        codes(
            &folder
                .run(["check", "--format=json", "--max-events=10", "p.yaml"])
                .stdout
        ),
        ["Q0106"]
    );
}

#[test]
fn the_json_report_is_one_document_with_the_program_of_each_file_that_compiles() {
    let folder = Folder::new([
        ("good.yaml", GOOD),
        ("bad.yaml", BAD),
        ("same.yaml", &format!("# again\n{GOOD}")),
    ]);
    let run = folder.run([
        "check",
        "--format",
        "json",
        "good.yaml",
        "bad.yaml",
        "same.yaml",
    ]);
    run.ended(1, "checked 3 files: 1 error, 0 warnings, 0 notes\n");
    let document = document(&run.stdout);
    assert_eq!(document["version"], 1);
    assert_eq!(
        document["summary"],
        json!({"files": 3, "errors": 1, "warnings": 0, "notes": 0})
    );
    let digests = [0, 1, 2].map(|index| &document["files"][index]["program_digest"]);
    assert_eq!(digests[0].as_str().map(str::len), Some(64));
    assert_eq!(digests[1], &Value::Null);
    assert_eq!(digests[0], digests[2]);
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let folder = Folder::new([("a.yaml", BAD), ("b.yaml", DOUBTFUL), ("c.yaml", GOOD)]);
    for format in ["human", "json"] {
        let arguments = ["check", "--format", format, "."];
        assert_eq!(folder.run(arguments).stdout, folder.run(arguments).stdout);
    }
}

#[test]
fn no_report_shows_a_password() {
    let text = "\
backend:
  kind: redis
  url: redis://quota:hunter2@localhost:x/0
  password: hunter2
";
    let folder = Folder::new([("p.yaml", text)]);
    for arguments in [
        &["check", "p.yaml"][..],
        &["check", "--color", "always", "p.yaml"],
        &["check", "--format", "json", "p.yaml"],
        &["check", "--no-plugins", "p.yaml"],
        &["print", "p.yaml"],
    ] {
        let run = folder.run(arguments);
        assert_eq!(run.code, Some(1), "{arguments:?}");
        assert!(
            !run.stdout.contains("hunter2") && !run.stderr.contains("hunter2"),
            "{arguments:?}: {run:?}"
        );
    }
}

fn document(stdout: &str) -> Value {
    serde_json::from_str(stdout).expect("one JSON document")
}

fn codes(stdout: &str) -> Vec<String> {
    let document = document(stdout);
    let diagnostics = document["files"][0]["diagnostics"]
        .as_array()
        .expect("a list");
    diagnostics
        .iter()
        .map(|found| found["code"].as_str().expect("a code").to_owned())
        .collect()
}
