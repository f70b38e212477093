//! Where output goes: terminals, pipes, readers that go away, disks that are full.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{BAD, Folder};

/// How a terminal is told that colours begin.
const ESCAPE: char = '\u{1b}';

#[test]
fn colours_are_for_terminals() {
    let folder = Folder::new([("p.yaml", BAD)]);
    let on_terminal = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = folder.command(arguments);
        command.env("TERM", "xterm").envs(variables.iter().copied());
        shown_on_terminal(command).contains(ESCAPE)
    };
    let check = ["check", "p.yaml"];
    assert!(on_terminal(&check, &[]));
    assert!(!on_terminal(&check, &[("NO_COLOR", "1")]));
    assert!(on_terminal(&check, &[("NO_COLOR", "")]));
    assert!(!on_terminal(&check, &[("TERM", "dumb")]));
    assert!(!on_terminal(&["check", "--color", "never", "p.yaml"], &[]));
    assert!(on_terminal(
        &["--color", "always", "check", "p.yaml"],
        &[("NO_COLOR", "1")]
    ));
    assert!(!on_terminal(
        &["check", "--format", "json", "--color", "always", "p.yaml"],
        &[]
    ));
}

#[test]
fn a_pipe_gets_colours_only_where_they_are_asked_for() {
    let folder = Folder::new([("p.yaml", BAD)]);
    let plain = folder.run(["check", "p.yaml"]).stdout;
    assert!(!plain.contains(ESCAPE));
    let coloured = folder.run(["check", "--color", "always", "p.yaml"]).stdout;
    assert!(coloured.contains(ESCAPE));
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
}

#[test]
fn a_reader_that_goes_away_changes_nothing() {
    let policies = "policies:\n".to_owned() + &"  - { selektor: {} }\n".repeat(5000);
    let folder = Folder::new([("p.yaml", &policies)]);
    for arguments in [
        &["check", "p.yaml"][..],
        &["check", "--format", "json", "p.yaml"],
        &["explain", "--list"],
    ] {
        let mut command = folder.command(arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the command ends");
        let expected = i32::from(arguments[0] == "check");
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(
            !said.contains("panicked") && !said.contains("Broken pipe"),
            "{said}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    let folder = Folder::new([("p.yaml", super::GOOD)]);
    let full = OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("the device");
    let output = folder
        .command(["check", "--format", "json", "p.yaml"])
        .stdout(full)
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        said.starts_with("error: cannot write the report: No space left on device"),
        "{said}"
    );
}

/// What `command` writes to its standard output where that is a terminal.
fn shown_on_terminal(mut command: Command) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&terminal)
        .and_then(|()| unlockpt(&terminal))
        .expect("a terminal of our own");
    let name = ptsname(&terminal, Vec::new())
        .expect("its name")
        .into_bytes();
    let name = OsString::from_vec(name);
    let other_end = OpenOptions::new()
        .read(true)
        .write(true)
        .open(name)
        .expect("its other end");
    command.stdout(other_end).stderr(Stdio::null());
    command.status().expect("the command runs");
    // The other end is closed here once the command is gone: then the rest is read, and an error tells of the end.
    drop(command);
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    let mut terminal = File::from(terminal);
    while let Ok(length) = terminal.read(&mut buffer)
        && length > 0
    {
        shown.extend_from_slice(&buffer[..length]);
    }
    String::from_utf8(shown).expect("UTF-8")
}
