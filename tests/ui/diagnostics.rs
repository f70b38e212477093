//! Every diagnostic code on files that have the fault.

use std::collections::BTreeSet;
use std::fs;

use quota_compiler::codes;

use crate::case::Case;
use crate::exceptions;
use crate::golden::{Goldens, file_name, files};

/// Where the files lie.
const FOLDER: &str = "ui/diagnostics";

/// What is a secret wherever it stands in a case.
const SECRET: &str = "hunter2";

#[test]
fn reports_are_the_expected_ones() {
    let mut goldens = Goldens::default();
    let mut shown = BTreeSet::new();
    for file in files(FOLDER, "yaml") {
        let name = file_name(&file);
        let code = name.split('-').next().unwrap_or_default();
        let text = fs::read(&file).expect("a case can be read");
        let case = Case::check(name, &text);
        if case.diagnostics().iter().all(|found| found.code.id != code) {
            goldens.fail(format_args!("{name} does not show {code}"));
        }
        shown.insert(code.to_owned());
        let (human, json) = (case.human(), case.json());
        if human.contains(SECRET) || json.contains(SECRET) {
            goldens.fail(format_args!("{name}: a report shows the secret"));
        }
        goldens.check(&file.with_extension("stderr"), &human);
        goldens.check(&file.with_extension("json"), &json);
    }
    for row in codes::ALL {
        if !shown.contains(row.id) && !exceptions::is_exempt(row.id) {
            goldens.fail(format_args!("{} has no file in ui/diagnostics", row.id));
        }
    }
    goldens.no_strays(FOLDER, "stderr");
    goldens.no_strays(FOLDER, "json");
    goldens.finish();
}
