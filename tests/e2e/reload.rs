//! The policy file as it changes under the running daemon (contract §5): every way files are changed is noticed, nothing bad
//! is brought into force, and nothing that was counted is lost.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use http::Method;
use notify::event::{AccessKind, EventKind};
use notify::{RecursiveMode, Watcher as _};
use quota_test_support::client::Connection;
use quota_test_support::services::{PATIENCE, Process, Quotad, Signal, wait_for};
use serde_json::Value;

use crate::policy_file::{CENTURY, PolicyFile, per_tenant};

const KITE: [(&str, &str); 1] = [("x-tenant-id", "kite")];

/// The limit of the first policy in force.
#[track_caller]
fn limit(quotad: &Quotad) -> u64 {
    let runtime = quotad.runtime();
    runtime["quota"]["policies"][0]["sustained"]["requests"]
        .as_u64()
        .unwrap()
}

#[track_caller]
fn wait_for_limit(quotad: &Quotad, requests: u64) {
    let what = format!("a limit of {requests}");
    wait_for(&what, || (limit(quotad) == requests).then_some(()));
}

#[track_caller]
fn wait_for_generation(quotad: &Quotad, generation: u64) {
    let what = format!("generation {generation}");
    wait_for(&what, || (quotad.generation() >= generation).then_some(()));
    assert_eq!(quotad.generation(), generation);
}

#[track_caller]
fn reloads(quotad: &Quotad, result: &str) -> f64 {
    quotad
        .metrics()
        .sum("quotad_config_reloads_total", &[("result", result)])
        .unwrap()
}

#[track_caller]
fn wait_for_failures(quotad: &Quotad, count: f64) {
    let what = format!("{count} refused files");
    wait_for(&what, || {
        (reloads(quotad, "failure") >= count).then_some(())
    });
    assert_eq!(reloads(quotad, "failure"), count);
}

/// Decides once and tells the status and what is left in the longest window.
#[track_caller]
fn decide(client: &mut Connection, headers: &[(&str, &str)]) -> (u16, Option<u64>) {
    let answer = client.get("/v1/forward-auth/orders", headers);
    let left = answer.header("ratelimit").map(|limits| {
        let (_, left) = limits.rsplit_once(";r=").unwrap();
        left.split(';').next().unwrap().parse().unwrap()
    });
    (answer.status, left)
}

#[test]
fn a_file_written_in_place_is_noticed() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    for requests in [2, 3] {
        fs::write(file.path(), per_tenant(requests)).unwrap();
        wait_for_limit(&quotad, requests);
    }
}

#[test]
fn a_file_written_in_pieces_is_noticed() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let text = per_tenant(2);
    let (first, second) = text.split_at(text.len() / 2);
    let mut writer = File::create(file.path()).unwrap();
    for piece in [first, second] {
        writer.write_all(piece.as_bytes()).unwrap();
        writer.sync_all().unwrap();
    }
    drop(writer);
    wait_for_limit(&quotad, 2);
}

#[test]
fn a_file_renamed_over_it_is_noticed_each_time() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    for (requests, generation) in [(2, 2), (3, 3)] {
        file.replace(&per_tenant(requests));
        wait_for_generation(&quotad, generation);
        assert_eq!(limit(&quotad), requests);
    }
}

#[test]
fn a_config_map_is_noticed_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("..data");
    let version = |requests: u64| {
        let version = folder.path().join(format!("..v{requests}"));
        fs::create_dir(&version).unwrap();
        fs::write(version.join("policies.yaml"), per_tenant(requests)).unwrap();
        version
    };
    let mut current = version(1);
    symlink("..v1", &data).unwrap();
    let path = folder.path().join("policies.yaml");
    symlink("..data/policies.yaml", &path).unwrap();

    let quotad = Quotad::start(&path);
    // As the kubelet does it: the new version beside the old one, one rename, the old one removed.
    for (requests, generation) in [(2, 2), (3, 3)] {
        let next = version(requests);
        let prepared = folder.path().join("..data_tmp");
        symlink(next.file_name().unwrap(), &prepared).unwrap();
        fs::rename(&prepared, &data).unwrap();
        fs::remove_dir_all(&current).unwrap();
        current = next;
        wait_for_generation(&quotad, generation);
        assert_eq!(limit(&quotad), requests);
    }
}

#[test]
fn a_link_that_is_pointed_elsewhere_is_noticed_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let targets = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    let point = |requests: u64| {
        let target = targets.path().join(format!("{requests}.yaml"));
        fs::write(&target, per_tenant(requests)).unwrap();
        let mut ln = Command::new("ln");
        let ended = Process::run("ln", ln.arg("-sfn").arg(&target).arg(&path));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        target
    };
    point(1);
    let quotad = Quotad::start(&path);
    for requests in [2, 3] {
        point(requests);
        wait_for_limit(&quotad, requests);
    }
    // So is an edit of what it points at, in another folder.
    fs::write(targets.path().join("3.yaml"), per_tenant(4)).unwrap();
    wait_for_limit(&quotad, 4);
}

#[test]
fn a_file_that_goes_away_and_comes_back_is_noticed() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    for (failures, requests) in [(1.0, 2), (2.0, 3)] {
        fs::remove_file(file.path()).unwrap();
        wait_for_failures(&quotad, failures);
        assert_eq!(decide(&mut client, &[]).0, 429);
        let last = &quotad.runtime()["daemon"]["last_reload"];
        assert_eq!(last["successful"], false);
        let error = last["error"].as_str().unwrap();
        assert!(error.contains("No such file or directory"), "{error}");
        fs::write(file.path(), per_tenant(requests)).unwrap();
        wait_for_limit(&quotad, requests);
    }
}

#[test]
fn a_folder_that_is_replaced_is_noticed_each_time() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("conf");
    let prepare = |name: &str, requests: u64| {
        let prepared = root.path().join(name);
        fs::create_dir(&prepared).unwrap();
        fs::write(prepared.join("policies.yaml"), per_tenant(requests)).unwrap();
        prepared
    };
    fs::rename(prepare("1", 1), &folder).unwrap();
    let path = folder.join("policies.yaml");
    let quotad = Quotad::start(&path);
    for (former, next, requests) in [("former-1", "2", 2), ("former-2", "3", 3)] {
        fs::rename(&folder, root.path().join(former)).unwrap();
        fs::rename(prepare(next, requests), &folder).unwrap();
        wait_for_limit(&quotad, requests);
    }
    fs::write(&path, per_tenant(4)).unwrap();
    wait_for_limit(&quotad, 4);
}

/// Tells whenever somebody opens the file at `path`.
fn openings(path: &Path) -> (notify::RecommendedWatcher, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if matches!(event.unwrap().kind, EventKind::Access(AccessKind::Open(_))) {
            let _the_test_may_be_over = tell.send(());
        }
    })
    .unwrap();
    watcher.watch(path, RecursiveMode::NonRecursive).unwrap();
    (watcher, told)
}

#[test]
fn a_file_that_says_the_same_is_no_change() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    file.replace(&per_tenant(2));
    wait_for_generation(&quotad, 2);

    let (watcher, opened) = openings(file.path());
    let touch = File::options().append(true).open(file.path()).unwrap();
    touch.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    drop(touch);
    // Ours, then the daemon's.
    for _ in 0..2 {
        opened.recv_timeout(PATIENCE).unwrap();
    }
    drop(watcher);
    assert_eq!(quotad.generation(), 2);

    let (_watcher, opened) = openings(file.folder());
    file.replace(&per_tenant(2));
    opened.recv_timeout(PATIENCE).unwrap();
    file.replace(&per_tenant(3));
    wait_for_limit(&quotad, 3);
    assert_eq!(quotad.generation(), 3);
    assert_eq!(reloads(&quotad, "success"), 2.0);
    assert_eq!(reloads(&quotad, "failure"), 0.0);
}

#[test]
fn sighup_reads_the_file_again() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    // Read again it is even if it says the same; the program that is in force stays the first.
    quotad.signal(Signal::HUP);
    wait_for("the file to be read again", || {
        (reloads(&quotad, "success") == 1.0).then_some(())
    });
    assert_eq!(quotad.generation(), 1);
    file.replace("enabled: maybe\n");
    wait_for_failures(&quotad, 1.0);
    quotad.signal(Signal::HUP);
    wait_for_failures(&quotad, 2.0);
    assert_eq!(quotad.generation(), 1);
    assert_eq!(quotad.admin("/readyz").status, 200);
}

#[test]
fn a_reload_that_is_asked_for_tells_what_came_of_it() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let mut admin = Connection::open(quotad.admin_address());
    let mut ask = || admin.request(Method::POST, "/admin/reload", &[]);
    file.replace(&per_tenant(2));
    let answer = ask();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["successful"], true);
    assert_eq!(answer.json()["generation"], 2);
    assert_eq!(limit(&quotad), 2);

    file.replace("enabled: maybe\n");
    let answer = ask();
    assert_eq!(answer.status, 422, "{answer:?}");
    let told = answer.json();
    assert_eq!(told["successful"], false);
    assert_eq!(told["diagnostics"][0]["code"], "Q0203");
    assert_eq!(told["diagnostics"][0]["line"], 1);
    assert_eq!(told["diagnostics"][0]["column"], 10);
    assert_eq!(limit(&quotad), 2);
}

/// The log lines that tell of a refused file.
fn refusals(quotad: &Quotad) -> Vec<Value> {
    let events = quotad.events();
    events
        .into_iter()
        .filter(|event| event["level"] == "ERROR")
        .collect()
}

#[test]
fn a_file_that_does_not_compile_leaves_the_program_in_place() {
    let file = PolicyFile::new(&per_tenant(3));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(decide(&mut client, &KITE), (200, Some(2)));
    let gauge = || {
        quotad
            .metrics()
            .sum("quotad_config_last_reload_successful", &[])
            .unwrap()
    };
    let timestamp = || {
        quotad
            .metrics()
            .sum("quotad_config_last_reload_success_timestamp_seconds", &[])
            .unwrap()
    };
    assert_eq!(gauge(), 1.0);
    let started = timestamp();
    let digest = quotad.runtime()["quota"]["program_digest"].clone();

    let faulty = "enabled: maybe\nenforcment: shadow\npolicies: []\n";
    file.replace(faulty);
    wait_for_failures(&quotad, 1.0);
    // The same bytes again are nothing new.
    let (_watcher, opened) = openings(file.folder());
    file.replace(faulty);
    opened.recv_timeout(PATIENCE).unwrap();

    assert_eq!(gauge(), 0.0);
    assert_eq!(timestamp(), started);
    assert_eq!(decide(&mut client, &KITE), (200, Some(1)));
    assert_eq!(quotad.admin("/readyz").status, 200);
    let runtime = quotad.runtime();
    assert_eq!(runtime["quota"]["generation"], 1);
    assert_eq!(runtime["quota"]["program_digest"], digest);
    let last = &runtime["daemon"]["last_reload"];
    assert_eq!(last["successful"], false);
    let places: Vec<_> = last["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| {
            (
                found["code"].as_str().unwrap(),
                found["line"].as_u64().unwrap(),
                found["column"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(places, [("Q0203", 1, 10), ("Q0201", 2, 1)]);
    assert_eq!(
        last["diagnostics"][1]["help"],
        "did you mean `enforcement`?"
    );

    // The next one that compiles is in force, and what was counted meanwhile counts.
    file.replace(&per_tenant(2));
    wait_for_generation(&quotad, 2);
    assert_eq!(gauge(), 1.0);
    assert!(timestamp() > started);
    assert_eq!(
        quotad.runtime()["daemon"]["last_reload"]["successful"],
        true
    );
    assert_eq!(decide(&mut client, &KITE), (429, Some(0)));
    assert_eq!(reloads(&quotad, "failure"), 1.0);

    let refusals = refusals(&quotad);
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    let told = refusals[0]["error"].as_str().unwrap();
    for part in ["Q0203", ":1:10", "Q0201", ":2:1"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn each_changed_bad_file_is_told_once() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let bad = [
        "",
        "policies: [\n",
        "resilience: {}\n",
        "\u{0}",
        "enabled: true\n",
    ];
    let mut failures = 0.0;
    for text in bad {
        file.replace(text);
        failures += 1.0;
        wait_for_failures(&quotad, failures);
    }
    assert_eq!(refusals(&quotad).len(), bad.len());
    assert_eq!(quotad.generation(), 1);
    let mut client = quotad.connect();
    assert_eq!(decide(&mut client, &KITE), (200, Some(0)));
}

#[test]
fn a_backend_that_cannot_be_loaded_leaves_the_program_in_place() {
    let file = PolicyFile::new(&per_tenant(2));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(decide(&mut client, &KITE), (200, Some(1)));
    let missing = file.folder().join("libmissing.so");
    file.replace(&format!(
        "backend: {{kind: redis, url: 'redis://user:geheim@127.0.0.1', plugin: {}}}\n{}",
        missing.display(),
        per_tenant(2)
    ));
    wait_for_failures(&quotad, 1.0);
    assert_eq!(decide(&mut client, &KITE), (200, Some(0)));
    let told = format!("{}{:?}", quotad.runtime(), quotad.events());
    assert!(told.contains("libmissing.so"), "{told}");
    assert!(!told.contains("geheim"), "{told}");
}

/// Two policies over the same tenants, as `settings` and `policies` say.
fn file_with(settings: &str, policies: &[&str]) -> String {
    let mut text = format!("enabled: true\n{settings}\npolicies:\n");
    for policy in policies {
        text += &format!("  - {policy}\n");
    }
    text
}

#[test]
fn counters_survive_what_does_not_name_them() {
    let tenant = "selector: {tenant: {key: header:x-tenant-id}}";
    let policy = |name: &str, more: &str, windows: &str| {
        format!("{{name: {name}, {more} {tenant}, {windows}}}")
    };
    let window =
        |requests: u64| format!("sustained: {{requests: {requests}, window_secs: {CENTURY}}}");
    let one = |requests| policy("one", "", &window(requests));
    let half = CENTURY / 2;
    let both = format!(
        "burst: {{requests: 9, window_secs: {half}}}, {}",
        window(10)
    );
    let smaller = "backend: {kind: in_memory, max_entries: 1}";
    let listed = policy("one", "route_allowlist: [orders, search],", &window(10));
    let other = policy("other", "route_allowlist: [search],", &window(10));
    let shorter = window(10).replace(&CENTURY.to_string(), &half.to_string());
    let org = [("x-org", "kite")];

    let file = PolicyFile::new(&file_with("", &[&one(5)]));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(decide(&mut client, &KITE), (200, Some(4)));
    let changes: [(String, &[_], _); 12] = [
        // Limits, both ways; one below what is used denies.
        (file_with("", &[&one(10)]), &KITE, (200, Some(8))),
        (file_with("", &[&one(2)]), &KITE, (429, Some(0))),
        // Another window beside it, the capacity, the routes, where the tenant comes from.
        (
            file_with("", &[&policy("one", "", &both)]),
            &KITE,
            (200, Some(7)),
        ),
        (file_with(smaller, &[&one(10)]), &KITE, (200, Some(6))),
        (file_with(smaller, &[&listed]), &KITE, (200, Some(5))),
        (
            file_with("", &[&one(10).replace("x-tenant-id", "x-org")]),
            &org,
            (200, Some(4)),
        ),
        // Shadow counts as well.
        (
            file_with("enforcement: shadow", &[&one(10)]),
            &KITE,
            (200, None),
        ),
        // The order of policies.
        (file_with("", &[&other, &one(10)]), &KITE, (200, Some(2))),
        // The window's length and the policy's name name other counters.
        (
            file_with("", &[&policy("one", "", &shorter)]),
            &KITE,
            (200, Some(9)),
        ),
        (
            file_with("", &[&policy("renamed", "", &window(10))]),
            &KITE,
            (200, Some(9)),
        ),
        // The former ones are still there, until the namespace changes.
        (file_with("", &[&one(10)]), &KITE, (200, Some(1))),
        (
            file_with(
                "backend: {kind: in_memory, key_prefix: elsewhere}",
                &[&one(10)],
            ),
            &KITE,
            (200, Some(9)),
        ),
    ];
    for ((text, headers, expected), generation) in changes.iter().zip(2..) {
        file.replace(text);
        wait_for_generation(&quotad, generation);
        assert_eq!(decide(&mut client, headers), *expected, "{text}");
    }
}

#[test]
fn what_is_in_force_can_be_switched_off_and_on() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(decide(&mut client, &KITE), (200, Some(0)));
    let disabled = per_tenant(1).replace("enabled: true", "enabled: false");
    let shadow = format!("enforcement: shadow\n{}", per_tenant(1));
    for (text, generation, decision) in [
        (disabled, 2, "not_applied"),
        (shadow, 3, "shadow_denied"),
        (per_tenant(1), 4, "denied"),
    ] {
        file.replace(&text);
        wait_for_generation(&quotad, generation);
        let answer = client.get("/v1/forward-auth/orders", &KITE);
        assert_eq!(answer.header("x-quota-decision"), Some(decision));
    }
}

#[test]
fn series_of_removed_policies_are_dropped_and_those_of_others_go_on() {
    let policy = |name: &str| {
        format!(
            "{{name: {name}, selector: {{tenant: {{key: header:x-tenant-id}}}}, sustained: {{requests: 9{}, window_secs: {CENTURY}}}}}",
            name.len()
        )
    };
    let file = PolicyFile::new(&file_with("", &[&policy("kept"), &policy("removed")]));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    let counted = |policy| {
        quotad.metrics().sum(
            "impulse_quota_policy_outcomes_total",
            &[("policy", policy), ("decision", "allowed")],
        )
    };
    decide(&mut client, &KITE);
    assert_eq!([counted("kept"), counted("removed")], [Some(1.0); 2]);
    file.replace(&file_with("", &[&policy("kept"), &policy("added")]));
    wait_for_generation(&quotad, 2);
    assert_eq!(counted("removed"), None);
    // A series is there before its first event.
    assert_eq!(counted("added"), Some(0.0));
    decide(&mut client, &KITE);
    assert_eq!([counted("kept"), counted("added")], [Some(2.0), Some(1.0)]);
}

#[test]
fn no_decision_is_lost_while_files_change_under_load() {
    const CLIENTS: u64 = 4;
    const RELOADS: u64 = 20;
    const TOTAL: u64 = 1_000_000_000;
    const ADMITTED: u64 = 300;
    // Each reload changes what does not name the counters: limits, capacity, order among the others, other policies.
    let text = |reload: u64| {
        format!(
            "\
enabled: true
backend: {{kind: in_memory, max_entries: {entries}}}
policies:
  - name: total
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    sustained: {{requests: {total}, window_secs: {CENTURY}}}
  - name: other-{reload}
    route_allowlist: [elsewhere]
    selector: {{route: true}}
    sustained: {{requests: 1, window_secs: 60}}
  - name: admitted
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    burst: {{requests: {ADMITTED}, window_secs: {CENTURY}}}
",
            entries = 10 + reload % 5,
            total = TOTAL + reload,
        )
    };
    let file = PolicyFile::new(&text(0));
    let quotad = Quotad::start(file.path());
    let done = AtomicBool::new(false);
    let (asked, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = quotad.connect();
                while !done.load(Ordering::SeqCst) || asked.load(Ordering::SeqCst) < 2 * ADMITTED {
                    let answer = client.get("/v1/forward-auth/orders", &KITE);
                    asked.fetch_add(1, Ordering::SeqCst);
                    match (answer.status, answer.header("x-quota-decision")) {
                        (200, Some("allowed")) => {
                            admitted.fetch_add(1, Ordering::SeqCst);
                        }
                        (429, Some("denied")) => {}
                        _ => panic!("no verdict: {answer:?}"),
                    }
                }
            });
        }
        // SIGHUP does not wait for quiet as the watch does, so that many reloads fit into a short time.
        for reload in 1..=RELOADS {
            file.replace(&text(reload));
            quotad.signal(Signal::HUP);
            wait_for_limit(&quotad, TOTAL + reload);
        }
        done.store(true, Ordering::SeqCst);
    });

    let (asked, admitted) = (asked.into_inner(), admitted.into_inner());
    assert_eq!(admitted, ADMITTED);
    assert_eq!(reloads(&quotad, "failure"), 0.0);
    // Every request was charged once, whichever program decided it.
    let answer = quotad
        .connect()
        .get("/v1/forward-auth/elsewhere", &[("x-tenant-id", "kite")]);
    assert_eq!(answer.status, 429);
    let counted = |decision: &str, policy: &str| {
        quotad.metrics().sum(
            "impulse_quota_policy_outcomes_total",
            &[("policy", policy), ("decision", decision)],
        )
    };
    assert_eq!(counted("allowed", "total"), Some((asked + 1) as f64));
    assert_eq!(counted("allowed", "admitted"), Some(ADMITTED as f64));
    assert_eq!(
        counted("denied", "admitted"),
        Some((asked + 1 - ADMITTED) as f64)
    );
    let told = quotad
        .connect()
        .post_json(
            "/v1/decide",
            &serde_json::json!({"headers": [["x-tenant-id", "kite"]]}),
        )
        .json();
    assert_eq!(
        told["policies"][0]["sustained"]["remaining"],
        TOTAL + RELOADS - (asked + 2)
    );
}
