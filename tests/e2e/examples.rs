//! What a newcomer does: the quickstart and the other examples, as the README tells them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quota_test_support::client::Answer;
use quota_test_support::commands::built;
use quota_test_support::services::{Process, Quotad, wait_for};

use crate::policy_file::PolicyFile;

const ACME: [(&str, &str); 1] = [("X-Tenant-Id", "acme")];

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(path)
}

/// Asks until a request is denied: three are admitted in ten seconds, and the ten seconds may turn meanwhile.
#[track_caller]
fn ask_until_denied(quotad: &Quotad) -> (Answer, usize) {
    let mut client = quotad.connect();
    let first = client.get("/v1/forward-auth/api", &ACME);
    assert_eq!(first.status, 200, "{first:?}");
    let mut admitted = 1;
    let denied = wait_for("a denial", || {
        let answer = client.get("/v1/forward-auth/api", &ACME);
        match answer.status {
            200 => {
                admitted += 1;
                None
            }
            _ => Some(answer),
        }
    });
    (denied, admitted)
}

#[test]
fn the_quickstart_admits_and_denies() {
    let quotad = Quotad::start(&example("quickstart/policies.yaml"));
    let (denied, admitted) = ask_until_denied(&quotad);
    assert!(admitted >= 3, "{admitted}");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("x-quota-decision"), Some("denied"));
    let retry_after: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=10).contains(&retry_after), "{retry_after}");
    let limits = denied.header("ratelimit").unwrap();
    assert!(
        limits.starts_with(&format!("\"per-tenant-burst\";r=0;t={retry_after}, ")),
        "{limits}"
    );
    assert_eq!(
        denied.header("ratelimit-policy"),
        Some("\"per-tenant-burst\";q=3;w=10, \"per-tenant-sustained\";q=1000;w=3600")
    );
}

#[test]
fn the_quickstart_in_shadow_refuses_nobody() {
    let quotad = Quotad::start(&example("quickstart/policies.shadow.yaml"));
    let mut client = quotad.connect();
    wait_for("a denial on paper", || {
        let answer = client.get("/v1/forward-auth/api", &ACME);
        assert_eq!(answer.status, 200);
        (answer.header("x-quota-decision") == Some("shadow_denied")).then_some(())
    });
}

#[test]
fn an_edit_takes_effect_and_a_mistake_is_pointed_at_while_the_daemon_goes_on() {
    let text = fs::read_to_string(example("quickstart/policies.yaml")).unwrap();
    let file = PolicyFile::new(&text);
    let mut quotad = Quotad::start(file.path());

    let edited = text.replacen("requests: 3,", "requests: 5,", 1);
    assert_ne!(edited, text);
    fs::write(file.path(), &edited).unwrap();
    quotad.wait_for_event("the policy file is in force");
    let (denied, admitted) = ask_until_denied(&quotad);
    assert!(admitted >= 5, "{admitted}");
    assert!(
        denied
            .header("ratelimit-policy")
            .unwrap()
            .starts_with("\"per-tenant-burst\";q=5;w=10, ")
    );

    let broken = edited.replacen("window_secs: 10 ", "window_secs: 9999 ", 1);
    assert_ne!(broken, edited);
    fs::write(file.path(), &broken).unwrap();
    let told = quotad.wait_for_event("the policy file is refused, the former program stays");
    let told = told["error"].as_str().unwrap();
    let line = 1 + broken
        .lines()
        .position(|line| line.contains("9999"))
        .unwrap();
    assert!(
        told.contains(&format!("policies.yaml:{line}:40: error[Q0501]")),
        "{told}"
    );
    let answer = quotad.connect().get("/v1/forward-auth/health", &[]);
    assert_eq!(answer.header("x-quota-decision"), Some("not_applied"));
}

#[test]
fn every_example_passes_the_compiler_and_its_own_tests() {
    for subcommand in ["check", "test"] {
        let mut quotac = Command::new(&built().quotac);
        let ended = Process::run("quotac", quotac.arg(subcommand).arg(example("")));
        assert_eq!(ended.code, Some(0), "{subcommand}: {ended:?}");
    }
}

#[test]
fn the_embedding_example_runs() {
    let mut embed = Command::new(built().command("quota-example-embed"));
    let ended = Process::run("quota-example-embed", &mut embed);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "");
}
