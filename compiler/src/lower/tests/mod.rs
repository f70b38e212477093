//! What lowering makes, and what is refused of what it did not make.

mod arbitrary;
mod cost;
mod digest;
mod layout;
mod print;
mod properties;
mod shape;
mod verify;

use crate::backend_kind::KnownKinds;
use crate::ir::Quota;
use crate::program::{Program, SliceId};
use crate::{Checked, Limits, check_text};

use super::lower;

/// The policies of `text`, which is legal.
#[track_caller]
fn quota(text: &str) -> Quota {
    checked(text).quota.expect("the policies are legal")
}

#[track_caller]
fn checked(text: &str) -> Checked {
    let checked = check_text(
        "policies.yaml",
        text.as_bytes(),
        Limits::default(),
        &KnownKinds,
    );
    assert!(
        checked.quota.is_some(),
        "{text}\n{:#?}",
        checked.diagnostics
    );
    checked
}

/// The program of `text`, which is legal.
#[track_caller]
fn program(text: &str) -> Program {
    let checked = checked(text);
    let quota = checked.quota.expect("the policies are legal");
    lower(&quota, &checked.policy_lines).expect("the policies lower")
}

/// The names of the policies a request of `route` meets, in order.
fn policies<'p>(program: &'p Program, route: Option<&str>) -> Vec<&'p str> {
    policies_of(program, program.slice_for(route))
}

fn policies_of(program: &Program, slice: SliceId) -> Vec<&str> {
    let rows = program.instructions(slice).iter();
    let rows = rows.map(|instruction| program.policy(instruction.policy));
    rows.map(|row| &*row.expect("its policy is there").name)
        .collect()
}
