//! The book and the README say what the code does.

use std::path::Path;
use std::process::Command;

use quota_compiler::backend_kind::KnownKinds;
use quota_compiler::{Limits, compile};
use quota_runtime::metrics::{BACKEND_HEALTH, POLICY_OUTCOMES};
use quota_test_support::commands::built;

use super::{files, none, root, text};

#[test]
fn every_section_cited_is_in_the_reference() {
    let reference = text("book/src/reference.md");
    let sections: Vec<u32> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.split('.').next()?.parse().ok())
        .collect();
    assert_eq!(sections, (1..=10).collect::<Vec<_>>());
    let mut faults = Vec::new();
    let mut cited = 0;
    for path in [files("", ".rs"), files("", ".md"), files("tests", ".yaml")].concat() {
        // Bytes of test inputs are not always text.
        let bytes = std::fs::read(root().join(&path)).expect("it can be read");
        // Put together here, so that this file cites nothing.
        let citation = concat!("contract", " §");
        for rest in String::from_utf8_lossy(&bytes).split(citation).skip(1) {
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            cited += 1;
            if !number
                .parse()
                .is_ok_and(|number: u32| sections.contains(&number))
            {
                faults.push(format!("{path}: {citation}{number}"));
            }
        }
    }
    assert!(cited > 100, "{cited}");
    none(&faults);
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Vec::new();
    let mut documents = files("book/src", ".md");
    documents.push("README.md".to_owned());
    for path in documents {
        let folder = root()
            .join(&path)
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default();
        for rest in text(&path).split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            if !folder.join(file).exists() {
                faults.push(format!("{path}: {target}"));
            }
        }
    }
    none(&faults);
}

#[test]
fn the_readme_begins_with_two_commands_that_exist() {
    let readme = text("README.md");
    assert!(readme.contains("cargo run -p quotad -- examples/quickstart/policies.yaml\n"));
    assert!(readme.contains("\ntests/run\n"));
    use std::os::unix::fs::PermissionsExt as _;
    for script in ["tests/run", ".ci/run"] {
        let mode = root()
            .join(script)
            .metadata()
            .expect("it is there")
            .permissions()
            .mode();
        assert_ne!(mode & 0o111, 0, "{script} cannot be executed");
    }
}

#[test]
fn the_shadow_quickstart_is_the_same_in_shadow() {
    let policies = |path: &str| -> Vec<String> {
        let lines = text(path);
        lines
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let enforced = policies("examples/quickstart/policies.yaml");
    let shadow = policies("examples/quickstart/policies.shadow.yaml");
    let different: Vec<_> = enforced
        .iter()
        .zip(&shadow)
        .filter(|(a, b)| a != b)
        .collect();
    assert_eq!(enforced.len(), shadow.len());
    assert_eq!(
        different,
        [(
            &"enforcement: enforce".to_owned(),
            &"enforcement: shadow".to_owned()
        )]
    );
}

/// Every block of YAML in the book and the README, with the line it begins at.
fn yaml_blocks() -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut documents = files("book/src", ".md");
    documents.push("README.md".to_owned());
    for path in documents {
        let text = text(&path);
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            if line.trim() == "```yaml" {
                let block: String = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| line.trim() != "```")
                    .flat_map(|line| [line, "\n"])
                    .collect();
                blocks.push((format!("{path}:{}", number + 1), block));
            }
        }
    }
    blocks
}

#[test]
fn policies_and_cases_in_the_book_are_in_order() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for (place, block) in yaml_blocks() {
        // An included file has tests of its own; a comment alone is an editor's; other tools say whose file it is.
        let is_ours = !block.starts_with("{{#include") && !block.starts_with("# ");
        if !is_ours {
            continue;
        }
        checked += 1;
        let diagnostics = if block.starts_with("cases:") {
            let read = quotac::cases::read::read(&place, block.as_bytes(), Limits::default());
            read.err()
                .map(|unreadable| unreadable.diagnostics)
                .unwrap_or_default()
        } else {
            compile(&place, block.as_bytes(), Limits::default(), &KnownKinds)
                .checked
                .diagnostics
        };
        let errors = diagnostics.iter().filter(|found| found.is_error());
        faults.extend(errors.map(|error| format!("{place}: {}", error.message)));
    }
    assert!(checked >= 3, "{checked}");
    none(&faults);
}

/// The long flags that `--help` of a command lists.
fn flags(command: &Path, arguments: &[&str]) -> Vec<String> {
    let output = Command::new(command)
        .args(arguments)
        .arg("--help")
        .output()
        .expect("the command runs");
    let help = String::from_utf8(output.stdout).expect("help is text");
    let mut flags: Vec<String> = help
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            let line = line
                .strip_prefix("-h, ")
                .or_else(|| line.strip_prefix("-V, "))
                .unwrap_or(line);
            let flag = line.split([' ', '=']).next()?;
            flag.starts_with("--").then(|| flag.to_owned())
        })
        .collect();
    flags.retain(|flag| flag != "--help" && flag != "--version");
    flags
}

#[test]
fn the_book_names_every_flag_of_the_daemon() {
    let chapter = text("book/src/operations.md");
    let flags = flags(&built().quotad, &[]);
    assert!(flags.len() > 8, "{flags:?}");
    let missing: Vec<_> = flags
        .into_iter()
        .filter(|flag| {
            !chapter.contains(&format!("`{flag} ")) && !chapter.contains(&format!("`{flag}`"))
        })
        .collect();
    none(&missing);
}

#[test]
fn the_book_names_every_metric_family() {
    let chapter = text("book/src/operations.md");
    let mut families = vec![BACKEND_HEALTH.to_owned(), POLICY_OUTCOMES.to_owned()];
    for path in files("runtime/quotad/src", ".rs") {
        for rest in text(&path).split("\"quotad_").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            // Samples in tests have labels.
            let name = name.split('{').next().unwrap_or_default();
            families.push(format!("quotad_{name}"));
        }
    }
    assert!(families.len() > 5, "{families:?}");
    let missing: Vec<_> = families
        .into_iter()
        .filter(|family| !chapter.contains(&format!("`{family}")))
        .collect();
    none(&missing);
}
