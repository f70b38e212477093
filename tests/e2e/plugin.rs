//! The daemon on a backend that is loaded from a library.

use std::path::Path;
use std::process::Command;

use quota_test_support::commands::built;
use quota_test_support::services::{Process, Quotad, wait_for};

use crate::policy_file::{PolicyFile, per_tenant};

const KITE: [(&str, &str); 1] = [("x-tenant-id", "kite")];

/// Two requests for each tenant, counted by the library at `plugin`.
fn counted_by(plugin: &Path, more: &str) -> String {
    format!(
        "backend: {{kind: in_memory, plugin: {}{more}}}\n{}",
        plugin.display(),
        per_tenant(2)
    )
}

#[test]
fn a_loaded_library_decides_as_the_linked_one() {
    let file = PolicyFile::new(&counted_by(&built().in_memory, ""));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    let mut status = || client.get("/v1/forward-auth/a", &KITE).status;
    assert_eq!([status(), status(), status()], [200, 200, 429]);

    let quota = &quotad.runtime()["quota"];
    assert_eq!(quota["active_backend"], "in_memory");
    assert_eq!(quota["plugin"]["abi"], "1.0");
    assert_eq!(quota["plugin"]["file"].as_str(), built().in_memory.to_str());
    let answered = quotad.metrics().sum(
        "impulse_quota_backend_health_total",
        &[("backend_mode", "in_memory"), ("reason", "available")],
    );
    assert_eq!(answered, Some(3.0));
}

#[test]
#[cfg(unix)]
fn a_library_its_group_can_change_is_used_with_a_warning() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libquota_backend_in_memory.so");
    std::fs::copy(&built().in_memory, &library).unwrap();
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o664)).unwrap();
    let file = PolicyFile::new(&counted_by(&library, ""));
    let mut quotad = Quotad::start(file.path());
    let event = quotad.wait_for_event("somebody else could change the plugin library");
    let doubt = event["doubt"].as_str().unwrap();
    assert!(
        doubt.ends_with("can be written by its group (mode 0664)"),
        "{event}"
    );
    assert_eq!(event["backend"], "in_memory");
}

#[test]
fn a_reload_brings_in_another_library() {
    let file = PolicyFile::new(&per_tenant(2));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(client.get("/v1/forward-auth/a", &KITE).status, 200);
    file.replace(&counted_by(&built().in_memory, ""));
    let quota = wait_for("the library", || {
        let quota = quotad.runtime()["quota"].clone();
        quota["plugin"]["file"].is_string().then_some(quota)
    });
    assert_eq!(quota["generation"], 2);
    // Health speaks of the backend that is there now.
    assert_eq!(quota["backend_status"]["availability"], "unknown");
    let mut status = || client.get("/v1/forward-auth/a", &KITE).status;
    assert_eq!([status(), status(), status()], [200, 200, 429]);
}

#[test]
fn a_library_that_is_not_there_or_not_the_pinned_one_is_refused_at_the_start() {
    let other = "0".repeat(64);
    let missing = Path::new("/nonexistent/libquota_backend_in_memory.so");
    for (text, says) in [
        (
            counted_by(&built().in_memory, &format!(", plugin_sha256: '{other}'")),
            &*format!("{other} is pinned"),
        ),
        (counted_by(missing, ""), "No such file or directory"),
    ] {
        let file = PolicyFile::new(&text);
        let mut command = Command::new(&built().quotad);
        let ended = Process::run("quotad", command.arg(file.path()));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("error[Q0615]"), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("policies.yaml:1:36"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}
