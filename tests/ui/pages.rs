//! The pages of `quotac explain`: what they show is true.

use quota_compiler::codes::{self, Code};

use crate::case::Case;
use crate::exceptions;
use crate::golden::Goldens;

#[test]
fn pages_show_a_file_that_fails_and_one_that_passes() {
    let mut goldens = Goldens::default();
    for row in codes::ALL {
        if let Err(fault) = check(row) {
            goldens.fail(format_args!("the page of {}: {fault}", row.id));
        }
    }
    goldens.finish();
}

fn check(row: &Code) -> Result<(), String> {
    let title = format!("# {} {}\n", row.id, row.name);
    if !row.page.starts_with(&title) {
        return Err(format!("its first line is not `{}`", title.trim_end()));
    }
    let name = if row.id.starts_with("Q07") {
        "policies_test.yaml"
    } else {
        "policies.yaml"
    };
    let fails = yaml_block(row.page, "Fails")?;
    let exempt = exceptions::page_has_no_failing_block(row.id);
    if let Some(text) = fails {
        if exempt {
            return Err("it shows a file that fails, and is listed as one that cannot".to_owned());
        }
        let case = Case::check(name, text.as_bytes());
        let found = case.diagnostics().iter().any(|found| found.code == row);
        let others = case.faults().iter().any(|code| *code != row.id);
        if !found || others {
            return Err(format!("the file that fails gives\n{}", case.human()));
        }
    } else if !exempt {
        return Err("there is no block of YAML under `## Fails`".to_owned());
    }
    let Some(text) = yaml_block(row.page, "Passes")? else {
        return Err("there is no block of YAML under `## Passes`".to_owned());
    };
    let case = Case::check(name, text.as_bytes());
    let found = case.diagnostics().iter().any(|found| found.code == row);
    if found || !case.faults().is_empty() {
        return Err(format!("the file that passes gives\n{}", case.human()));
    }
    Ok(())
}

/// The one block of YAML in the section `heading` of a page.
pub(crate) fn yaml_block<'a>(page: &'a str, heading: &str) -> Result<Option<&'a str>, String> {
    let Some((_, section)) = page.split_once(&format!("\n## {heading}\n")) else {
        return Err(format!("there is no section `## {heading}`"));
    };
    let section = section.split("\n## ").next().unwrap_or_default();
    let Some((_, block)) = section.split_once("```yaml\n") else {
        return Ok(None);
    };
    match block.split_once("```") {
        Some((block, rest)) if !rest.contains("```yaml\n") => Ok(Some(block)),
        Some(_) => Err(format!(
            "there is a second block of YAML under `## {heading}`"
        )),
        None => Err(format!("a block under `## {heading}` does not end")),
    }
}
