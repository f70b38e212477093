//! The flat program of whole files, as `quotac print` shows it: `programs/<name>.yaml` and, beside it, `<name>.program`.

use std::fs;

use quota_compiler::{Limits, compile};

use crate::case;
use crate::golden::{Goldens, file_name, files};

#[test]
fn programs_are_the_expected_ones() {
    let mut goldens = Goldens::default();
    for file in files("ui/programs", "yaml") {
        let text = fs::read(&file).expect("a file can be read");
        let name = file_name(&file);
        let compiled = compile(name, &text, Limits::default(), &case::kinds());
        match compiled.program {
            Some(program) => goldens.check(&file.with_extension("program"), &program.to_string()),
            None => goldens.fail(format_args!("{name}: {:#?}", compiled.checked.diagnostics)),
        }
    }
    goldens.no_strays("ui/programs", "program");
    goldens.finish();
}
