//! The conformance suite: every case of `cases/` on every executor it may run on, and what one case cannot show as properties.
//!
//! A case whose policies name no backend runs on the model, on the engine with `in_memory` linked in and loaded, and, with the
//! backend made remote, on the model and the engine again; one that names `in_memory` on the first three; one that names a remote
//! kind on the model and on the engine, with a stand-in for the server. The outcomes of all must be equal.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "it serves tests, where a panic is how a failure is told"
)]

mod backends;
mod elsewhere;
mod properties;

use std::fs;
use std::path::{Path, PathBuf};

use quota_compiler::Limits;
use quota_compiler::settings::IN_MEMORY;
use quota_runtime::clock::UnixMillis;
use quota_test_support::executors::{Loaded, Remote, RemoteModel, backend_kind};
use quota_test_support::model::Model;
use quotac::cases::engine::Engine;
use quotac::cases::read::read;
use quotac::cases::run::{Actual, CaseResult, Decides as _, Executor, run};
use quotac::cases::{Case, CaseFile, CasePolicies, report};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/cases")
}

/// Every case file, sorted by name.
fn case_files() -> Vec<CaseFile> {
    let entries = fs::read_dir(folder()).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.to_string_lossy().ends_with("_test.yaml"))
        .collect();
    paths.sort();
    let files = paths.iter().map(|path| {
        let name = path
            .strip_prefix(folder())
            .expect("it lies there")
            .display()
            .to_string();
        let bytes = fs::read(path).expect("it can be read");
        read(&name, &bytes, Limits::default()).unwrap_or_else(|unreadable| {
            let faults: Vec<_> = unreadable
                .diagnostics
                .iter()
                .map(|fault| {
                    format!(
                        "{name}:{}: {}",
                        unreadable.text.line(fault.span.start),
                        fault.message
                    )
                })
                .collect();
            panic!("{}", faults.join("\n"))
        })
    });
    files.collect()
}

/// The policy text of `case`.
fn policies(case: &Case) -> Vec<u8> {
    match &case.policies {
        CasePolicies::Inline(text) => text.clone().into_bytes(),
        CasePolicies::File(path) => fs::read(folder().join(path)).expect("it can be read"),
    }
}

/// Runs `case` on one executor; what failed, in words.
fn failure<E: Executor>(
    executor: &E,
    on: &str,
    file: &CaseFile,
    case: &Case,
    text: &[u8],
) -> Option<String> {
    let name = file.text.name();
    match run(executor, case, name, text) {
        CaseResult::Passed => None,
        CaseResult::Failed(failure) => Some(format!(
            "on {on}: {}",
            report::failure(name, case, &failure)
        )),
        CaseResult::NotRun(why) => Some(format!("on {on}: {name}:{}: not run: {why:?}", case.line)),
    }
}

/// What every repetition of every step comes to, expected or not.
fn outcomes<E: Executor>(executor: &E, name: &str, case: &Case, text: &[u8]) -> Vec<Actual> {
    let mut open = executor
        .open(name, text)
        .unwrap_or_else(|why| panic!("{name}:{}: {why:?}", case.line));
    let mut all = Vec::new();
    for step in &case.steps {
        let now = case
            .start_unix_ms
            .checked_add_signed(step.at_ms)
            .expect("cases have clocks");
        for _ in 0..step.repeat {
            all.push(
                open.decide(&step.request, UnixMillis(now), step.fault)
                    .unwrap_or_else(|why| panic!("{name}:{}: {why}", step.line)),
            );
        }
    }
    all
}

/// `outcomes` without the backend modes, which name the kind.
fn without_modes(mut outcomes: Vec<Actual>) -> Vec<Actual> {
    for outcome in outcomes.iter_mut().flat_map(|actual| &mut actual.outcomes) {
        outcome.backend_mode.clear();
    }
    outcomes
}

#[test]
fn every_case_holds_on_every_executor() {
    let engine = Engine::default();
    let mut failures = Vec::new();
    for file in case_files() {
        for case in &file.cases {
            let text = policies(case);
            let kind = backend_kind(&text);
            failures.extend(failure(&Model, "the model", &file, case, &text));
            failures.extend(failure(&engine, "the engine", &file, case, &text));
            if kind.as_deref().is_none_or(|kind| kind == IN_MEMORY) {
                failures.extend(failure(
                    &Loaded::default(),
                    "in_memory loaded",
                    &file,
                    case,
                    &text,
                ));
            }
            if kind.is_none() {
                failures.extend(failure(
                    &RemoteModel,
                    "the remote model",
                    &file,
                    case,
                    &text,
                ));
                failures.extend(failure(
                    &Remote::default(),
                    "a remote backend",
                    &file,
                    case,
                    &text,
                ));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn all_executors_agree_on_what_no_case_expects() {
    let engine = Engine::default();
    for file in case_files() {
        let name = file.text.name();
        for case in &file.cases {
            let text = policies(case);
            let kind = backend_kind(&text);
            let model = outcomes(&Model, name, case, &text);
            let place = format!("{name}:{}: {}", case.line, case.name);
            assert_eq!(outcomes(&engine, name, case, &text), model, "{place}");
            if kind.as_deref().is_none_or(|kind| kind == IN_MEMORY) {
                assert_eq!(
                    outcomes(&Loaded::default(), name, case, &text),
                    model,
                    "{place}"
                );
            }
            if kind.is_none() {
                let remote = outcomes(&RemoteModel, name, case, &text);
                assert_eq!(
                    outcomes(&Remote::default(), name, case, &text),
                    remote,
                    "{place}"
                );
                assert_eq!(without_modes(remote), without_modes(model), "{place}");
            }
        }
    }
}

#[test]
fn cases_that_run_on_every_backend_name_no_mode() {
    for file in case_files() {
        for case in &file.cases {
            let names_a_mode = case
                .steps
                .iter()
                .filter_map(|step| step.expect.outcomes.as_ref())
                .flatten()
                .any(|outcome| outcome.backend_mode.is_some());
            assert!(
                !names_a_mode || backend_kind(&policies(case)).is_some(),
                "{}:{}",
                file.text.name(),
                case.line
            );
        }
    }
}

#[test]
fn there_are_cases_for_every_section_the_format_can_speak_of() {
    let files = case_files();
    let cases: usize = files.iter().map(|file| file.cases.len()).sum();
    assert!(cases >= 80, "{cases} cases");
    let all: String = files.iter().map(|file| file.text.as_str()).collect();
    // Put together here, so that this file cites nothing.
    let citation = concat!("# contract", " §");
    for section in 2..=9 {
        let rule = format!("{citation}{section}:");
        assert!(all.contains(&rule), "no case says `{rule} …`");
    }
    // Each case stands under the rule it shows.
    for file in &files {
        let lines: Vec<_> = file.text.as_str().lines().collect();
        for case in &file.cases {
            let line = usize::try_from(case.line).unwrap_or(usize::MAX);
            let above = lines.get(line - 2).copied().unwrap_or_default().trim();
            assert!(
                above.starts_with(citation),
                "{}:{}",
                file.text.name(),
                case.line
            );
        }
    }
}

#[test]
fn no_two_cases_have_one_name() {
    let files = case_files();
    let mut names: Vec<_> = files
        .iter()
        .flat_map(|file| &file.cases)
        .map(|case| &case.name)
        .collect();
    names.sort();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
}
