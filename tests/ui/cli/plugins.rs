//! Backend kinds and the plugins that bring them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use quota_test_support::commands::built;

use super::Folder;

const IN_MEMORY: &str = "libquota_backend_in_memory.so";

#[test]
fn a_plugin_is_loaded_from_the_folders_given() {
    let folder = Folder::new([(
        "p.yaml",
        "backend: { kind: in_memory, plugin: libquota_backend_in_memory.so, max_entries: 10 }\n",
    )]);
    let clean = "checked 1 file: 0 errors, 0 warnings, 0 notes\n";
    let plugins = built().plugin_dir().as_os_str();
    folder
        .run([
            "check".as_ref(),
            "--plugin-dir".as_ref(),
            plugins,
            "p.yaml".as_ref(),
        ])
        .ended(0, clean);
    let output = folder
        .command(["check", "p.yaml"])
        .env("QUOTA_PLUGIN_PATH", plugins)
        .output();
    assert_eq!(output.expect("the command runs").status.code(), Some(0));
}

#[test]
fn the_first_folder_counts_and_a_plugin_that_is_refused_is_an_error() {
    let folder = Folder::new([
        (
            "p.yaml",
            "backend: { kind: in_memory, plugin: libquota_backend_in_memory.so }\n",
        ),
        ("first/libquota_backend_in_memory.so", "not a library\n"),
    ]);
    fs::create_dir(folder.path().join("second")).expect("a folder");
    fs::copy(
        &built().in_memory,
        folder.path().join("second").join(IN_MEMORY),
    )
    .expect("a copy");
    let check = |folders: [&str; 2]| {
        folder.run([
            "check",
            "--plugin-dir",
            folders[0],
            "--plugin-dir",
            folders[1],
            "p.yaml",
        ])
    };
    let run = check(["first", "second"]);
    run.ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    assert!(run.stdout.starts_with("error[Q0615]"), "{}", run.stdout);
    assert!(
        run.stdout.contains("`first/libquota_backend_in_memory.so`"),
        "{}",
        run.stdout
    );
    assert_eq!(check(["second", "first"]).code, Some(0));

    let library = folder.path().join("second").join(IN_MEMORY);
    fs::set_permissions(library, fs::Permissions::from_mode(0o666)).expect("its owner may");
    let run = check(["second", "first"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stdout.contains("can be written by everyone"),
        "{}",
        run.stdout
    );
}

#[test]
fn a_pin_accepts_one_content() {
    let pinned = |digest: &str| {
        format!(
            "backend:\n  kind: in_memory\n  plugin: libquota_backend_in_memory.so\n  plugin_sha256: {digest}\n"
        )
    };
    let folder = Folder::new([("p.yaml", &pinned(&"0".repeat(64)))]);
    let plugins = built().plugin_dir().to_str().expect("UTF-8");
    let run = folder.run(["check", "--plugin-dir", plugins, "p.yaml"]);
    assert_eq!(run.code, Some(1));
    let (_, found) = run
        .stdout
        .split_once("its SHA-256 is ")
        .expect("the digest is told");
    fs::write(folder.path().join("p.yaml"), pinned(&found[..64])).expect("a file");
    assert_eq!(
        folder
            .run(["check", "--plugin-dir", plugins, "p.yaml"])
            .code,
        Some(0)
    );
}

#[test]
fn a_kind_without_a_plugin_is_an_error_unless_plugins_are_not_loaded() {
    let folder = Folder::new([("p.yaml", "backend: { kind: acme, region: north }\n")]);
    let run = folder.run(["check", "p.yaml"]);
    run.ended(1, "checked 1 file: 1 error, 0 warnings, 0 notes\n");
    assert!(
        run.stdout
            .starts_with("error[Q0601]: unknown backend kind `acme`"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("`in_memory`"), "{}", run.stdout);
    let run = folder.run(["check", "--no-plugins", "p.yaml"]);
    run.ended(0, "checked 1 file: 0 errors, 0 warnings, 1 note\n");
    assert!(run.stdout.starts_with("note[Q0619]"), "{}", run.stdout);
}

#[test]
fn redis_needs_no_plugin_to_be_checked() {
    let folder = Folder::new([
        (
            "plain.yaml",
            "backend: { kind: redis, url: \"redis://localhost\" }\n",
        ),
        (
            "own.yaml",
            "backend: { kind: redis, url: \"redis://localhost\", cluster: true }\n",
        ),
        (
            "bad.yaml",
            "backend: { kind: redis, url: \"redis://localhost\", max_inflight: 0 }\n",
        ),
    ]);
    let check = |file| folder.run(["check", "--no-plugins", "--deny-warnings", file]);
    check("plain.yaml").ended(0, "checked 1 file: 0 errors, 0 warnings, 0 notes\n");
    check("own.yaml").ended(0, "checked 1 file: 0 errors, 0 warnings, 1 note\n");
    assert_eq!(check("bad.yaml").code, Some(1));
}
