//! What the verifier refuses: each fault made in a sound program, and any fault at all made in a random one.

use std::num::NonZeroU64;

use proptest::prelude::*;
use proptest::sample::Index;

use super::arbitrary::quotas;
use super::program;
use crate::ir::{SelectorError, WindowsError};
use crate::lower::{DecompileError, decompile, lower};
use crate::program::verify::{Fault, Place, VerifyError, verify};
use crate::program::{
    Program, RouteIndex, RouteOperand, Slice, SliceId, SlotId, SourceId, TemplateId, WindowOperand,
    canonical,
};
use crate::settings::FallbackSettings;
use crate::terms::{Enforcement, Source};

/// Slice 0: policies 0 and 3; slice 1 (route `a`): 0, 1, 3; slice 2 (route `b`): all.
fn sound() -> Program {
    program(
        "
enabled: true
policies:
  - { name: every, selector: { tenant: { key: 'header:t' } }, burst: { requests: 1, window_secs: 1 }, sustained: { requests: 2, window_secs: 2 } }
  - { name: two, route_allowlist: [a, b], selector: { route: true, client: { key: client_ip } }, burst: { requests: 1, window_secs: 1 } }
  - { name: one, route_allowlist: [b], selector: { route: true, token: { key: bearer_token } }, sustained: { requests: 1, window_secs: 1 } }
  - { name: last, selector: { tenant: { key: 'header:t' }, client: { key: 'cookie:c' } }, burst: { requests: 1, window_secs: 1 } }
",
    )
}

/// The verifier says `fault` at `place` of a sound program with one change.
#[track_caller]
fn check(place: Place, fault: Fault, change: impl FnOnce(&mut Program)) {
    let mut program = sound();
    change(&mut program);
    assert_eq!(verify(&program), Err(VerifyError { place, fault }));
    // As good as the digest may be, it is not what finds the fault.
    program.digest = canonical::digest(&program);
    assert_eq!(verify(&program), Err(VerifyError { place, fault }));
}

fn push<T>(table: &mut Box<[T]>, item: T) {
    let mut items = std::mem::take(table).into_vec();
    items.push(item);
    *table = items.into();
}

/// Appends a slice with the given instructions and sources of another slice.
fn push_slice(program: &mut Program, from: u32, instructions: &[usize], sources: &[usize]) {
    let from = SliceId(from);
    let code: Vec<_> = program.instructions(from).to_vec();
    let ids: Vec<_> = program.sources_of(from).to_vec();
    let slice = Slice {
        code_start: u32::try_from(program.code.len()).expect("it is short"),
        code_len: u32::try_from(instructions.len()).expect("it is short"),
        sources_start: u32::try_from(program.slice_sources.len()).expect("it is short"),
        sources_len: u16::try_from(sources.len()).expect("it is short"),
    };
    push(&mut program.slices, slice);
    for at in instructions {
        push(&mut program.code, code[*at]);
    }
    for at in sources {
        push(&mut program.slice_sources, ids[*at]);
    }
}

fn secs(requests: u64, secs: u64) -> Option<WindowOperand> {
    Some(WindowOperand {
        requests: NonZeroU64::new(requests).expect("it is positive"),
        length_ms: NonZeroU64::new(secs * 1000).expect("it is positive"),
    })
}

#[test]
fn the_sound_program_is_sound() {
    let program = sound();
    assert_eq!(verify(&program), Ok(()));
    let slices: Vec<_> = program.slices.iter().map(|slice| slice.code_len).collect();
    assert_eq!(slices, [2, 3, 4]);
}

#[test]
fn slices_lie_end_to_end() {
    let fault = Fault::SlicesNotEndToEnd;
    check(Place::Slice(1), fault, |program| {
        program.slices[1].code_start += 1;
    });
    check(Place::Slice(1), fault, |program| {
        program.slices[1].sources_start -= 1;
    });
    check(Place::Slice(2), fault, |program| {
        program.slices[2].code_len += 1;
    });
    check(Place::Slice(2), fault, |program| {
        program.slices[2].code_len = u32::MAX;
    });
    check(Place::Slice(2), fault, |program| {
        program.slices[2].sources_len = u16::MAX;
    });
    check(Place::Program, fault, |program| {
        let first = program.code[0];
        push(&mut program.code, first);
    });
    check(Place::Program, fault, |program| {
        push(&mut program.slice_sources, SourceId(0));
    });
}

#[test]
fn slices_are_in_the_order_of_their_first_routes() {
    let fault = Fault::SlicesOutOfOrder;
    // Policies 0, 2 and 3, which is the slice of no route.
    check(Place::Program, fault, |program| {
        push_slice(program, 2, &[0, 2, 3], &[0, 2, 3]);
        let slots = [[0, 9, 9], [9, 1, 9], [0, 9, 2]];
        for (instruction, slots) in program.code[9..].iter_mut().zip(slots) {
            instruction.slots = slots.map(|slot| match slot {
                9 => SlotId::NONE,
                _ => SlotId(slot),
            });
        }
    });
    // Routes `a` and `b` with the policies of each other.
    check(Place::Route(0), fault, |program| {
        let [a, b] = ["a".into(), "b".into()];
        program.policies[1].view.route_allowlist = [a, b].into();
        program.policies[2].view.route_allowlist = ["a".into()].into();
        program.templates[2] = b"\x01p\x03oner\x01a".as_slice().into();
        program.routes[0].1 = SliceId(2);
        program.routes[1].1 = SliceId(1);
    });
}

#[test]
fn slices_are_distinct() {
    check(Place::Slice(3), Fault::SlicesEqual, |program| {
        push_slice(program, 1, &[0, 1, 2], &[0, 1, 2]);
    });
}

#[test]
fn sources_are_in_the_order_of_first_use() {
    let fault = Fault::SlotsOutOfOrder;
    // Of the slice.
    check(Place::Instruction(2), fault, |program| {
        program.slice_sources.swap(2, 3);
        program.code[2].slots[0] = SlotId(1);
        program.code[3].slots[2] = SlotId(0);
        program.code[4].slots[0] = SlotId(1);
    });
    check(Place::Slice(1), fault, |program| {
        let unused = program.sources_of(SliceId(2))[2];
        let mut sources = program.slice_sources.to_vec();
        sources.insert(5, unused);
        program.slice_sources = sources.into();
        program.slices[1].sources_len += 1;
        program.slices[2].sources_start += 1;
    });
    // Of the program.
    check(Place::Program, fault, |program| {
        push(&mut program.sources, Source::Query("unused".into()));
    });
    check(Place::Policy(0), fault, |program| {
        program.policies[0].view.tenant = Some(SourceId(1));
    });
}

#[test]
fn ids_are_within_their_tables() {
    let fault = Fault::OutOfBounds;
    check(Place::Instruction(1), fault, |program| {
        program.code[1].policy.0 = 4;
    });
    check(Place::Policy(3), fault, |program| {
        program.policies[3].view.client = Some(SourceId(4));
    });
    check(Place::Slice(0), fault, |program| {
        program.slice_sources[0] = SourceId(4);
    });
}

#[test]
fn policies_of_a_slice_ascend() {
    let fault = Fault::PoliciesNotAscending;
    check(Place::Instruction(3), fault, |program| {
        program.code[3] = program.code[2];
    });
}

#[test]
fn an_instruction_has_what_its_policy_has() {
    let place = Place::Instruction(3);
    check(place, Fault::WrongTemplate, |program| {
        program.code[3].template = TemplateId(0);
    });
    check(place, Fault::WrongTemplate, |program| {
        program.code[3].template = TemplateId(u32::MAX);
    });
    check(place, Fault::WrongRouteOperand, |program| {
        program.code[3].route = RouteOperand::Absent;
    });
    check(place, Fault::WrongSlot, |program| {
        program.code[3].slots[2] = SlotId::NONE;
    });
    check(place, Fault::WrongSlot, |program| {
        program.code[3].slots[2] = SlotId(0);
    });
    check(place, Fault::WrongSlot, |program| {
        program.code[3].slots[2] = SlotId(3);
    });
    check(place, Fault::WrongSlot, |program| {
        program.code[3].slots[0] = SlotId(0);
    });
    check(place, Fault::ReservedNotZero, |program| {
        program.code[3].reserved = 1;
    });
}

#[test]
fn there_is_one_template_for_each_policy() {
    check(Place::Program, Fault::WrongTemplate, |program| {
        push(&mut program.templates, Box::default());
    });
    let fault = Fault::TemplateUnreadable;
    let templates: [&[u8]; 7] = [
        b"",
        b"\x01p\x03on",
        b"\x01p\x03One",
        b"\x01p\x03one",
        b"\x01p\x03oner\x01a",
        b"\x01p\x03oner\x01bt",
        b"\x01p\x03oner\x01bt\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ];
    for template in templates {
        check(Place::Template(2), fault, |program| {
            program.templates[2] = template.into();
        });
    }
    // A policy of two routes does not know which.
    check(Place::Template(1), fault, |program| {
        program.templates[1] = b"\x01p\x03twor\x01a".as_slice().into();
    });
}

#[test]
fn names_are_trimmed_and_distinct() {
    for name in ["", " one", "one\u{2003}"] {
        check(Place::Policy(2), Fault::NameNotTrimmed, |program| {
            program.policies[2].name = name.into();
        });
        check(Place::Policy(2), Fault::NameNotTrimmed, |program| {
            program.policies[2].view.route_allowlist = [name.into()].into();
        });
    }
    check(Place::Policy(2), Fault::NotDistinct, |program| {
        program.policies[2].name = "two".into();
    });
}

#[test]
fn tables_of_routes_are_sorted() {
    check(Place::Policy(1), Fault::NotSorted, |program| {
        program.policies[1].view.route_allowlist.reverse();
    });
    check(Place::Policy(1), Fault::NotSorted, |program| {
        program.policies[1].view.route_allowlist = ["a".into(), "a".into()].into();
    });
    check(Place::Route(0), Fault::NotSorted, |program| {
        program.routes.swap(0, 1);
        program.route_index = RouteIndex::of(&program.routes);
    });
    check(Place::Route(1), Fault::NotSorted, |program| {
        program.routes[1].0 = "c".into();
        program.route_index = RouteIndex::of(&program.routes);
    });
}

#[test]
fn routes_are_found_by_name() {
    check(Place::Route(0), Fault::RouteNotFound, |program| {
        program.route_index = RouteIndex::of(&[]);
    });
    check(Place::Route(1), Fault::RouteNotFound, |program| {
        program.route_index = RouteIndex::of(&program.routes[..1]);
    });
}

#[test]
fn a_route_has_the_policies_that_apply() {
    let fault = Fault::WrongPolicies;
    check(Place::Route(0), fault, |program| {
        program.routes[0].1 = SliceId(2);
    });
    check(Place::Route(0), fault, |program| {
        program.routes[0].1 = SliceId(9);
    });
    check(Place::Program, fault, |program| {
        program.routes = program.routes[..1].into();
    });
    // A slice that lacks the last policy, which is for every route.
    check(Place::Slice(2), fault, |program| {
        program.code = program.code[..8].into();
        program.slices[2].code_len -= 1;
        program.slice_sources = program.slice_sources[..8].into();
        program.slices[2].sources_len -= 1;
    });
    // A slice beside the first with the policies for every route and no other.
    check(Place::Slice(3), fault, |program| {
        push_slice(program, 0, &[0, 1], &[0, 1]);
    });
}

#[test]
fn every_other_request_has_the_first_slice() {
    check(Place::Program, Fault::WrongAnyRoute, |program| {
        program.any_route = SliceId(1);
    });
    check(Place::Program, Fault::WrongAnyRoute, |program| {
        program.slices = Box::default();
        program.code = Box::default();
        program.slice_sources = Box::default();
    });
}

#[test]
fn sources_are_normal_distinct_and_legal_where_they_stand() {
    for name in ["T", " t", ""] {
        for source in [Source::Header, Source::Cookie, Source::Query] {
            check(Place::Source(0), Fault::NotNormalized, |program| {
                program.sources[0] = source(name.into());
            });
        }
    }
    check(Place::Source(3), Fault::NotDistinct, |program| {
        program.sources[3] = program.sources[0].clone();
    });
    check(Place::Slice(0), Fault::NotDistinct, |program| {
        program.slice_sources[1] = program.slice_sources[0];
    });
    check(Place::Policy(0), Fault::IllegalSelector, |program| {
        program.sources.swap(0, 1);
    });
    check(Place::Policy(3), Fault::IllegalSelector, |program| {
        program.policies[3].view.tenant = Some(SourceId(3));
    });
    check(Place::Policy(2), Fault::IllegalSelector, |program| {
        program.sources = program.sources[..2].into();
        push(&mut program.sources, Source::Cookie("c".into()));
        program.policies[2].view.token = None;
        program.policies[2].view.route = false;
        program.policies[3].view.client = Some(SourceId(2));
    });
    check(Place::Policy(3), Fault::WrongLabel, |program| {
        program.policies[3].selector_dimensions = "client+tenant".into();
    });
}

#[test]
fn windows_are_legal() {
    let fault = Fault::IllegalWindows;
    check(Place::Policy(1), fault, |program| {
        program.policies[1].burst = None;
    });
    check(Place::Policy(0), fault, |program| {
        program.policies[0].sustained = secs(2, 1);
    });
    check(Place::Policy(1), fault, |program| {
        program.policies[1].burst = secs(1, 3_153_600_001);
    });
    check(Place::Policy(1), fault, |program| {
        let window = program.policies[1].burst.as_mut().expect("it has one");
        window.length_ms = NonZeroU64::new(1_500).expect("it is positive");
    });
}

#[test]
fn settings_are_legal() {
    let fault = Fault::IllegalSettings;
    check(Place::Program, fault, |program| {
        program.fallback = Some(FallbackSettings {
            key_prefix: "f".into(),
            max_entries: NonZeroU64::MIN,
        });
    });
    for prefix in ["", " p"] {
        check(Place::Program, fault, |program| {
            program.backend.key_prefix = prefix.into();
        });
    }
    check(Place::Program, fault, |program| {
        program.backend.kind = " ".into();
    });
    check(Place::Program, fault, |program| {
        let empty = super::program("enabled: false");
        *program = Program {
            enabled: true,
            ..empty
        };
    });
}

#[test]
fn the_digest_is_that_of_the_program() {
    let wrong = Err(VerifyError {
        place: Place::Program,
        fault: Fault::WrongDigest,
    });
    let mut program = sound();
    program.enforcement = Enforcement::Shadow;
    assert_eq!(verify(&program), wrong);
    let mut program = sound();
    program.digest[31] ^= 1;
    assert_eq!(verify(&program), wrong);
}

#[test]
fn a_fault_says_where_it_is() {
    let error = VerifyError {
        place: Place::Instruction(7),
        fault: Fault::WrongSlot,
    };
    assert_eq!(
        error.to_string(),
        "instruction 7: a slot is not that of the policy's source"
    );
}

#[test]
fn what_executes_no_legal_policies_does_not_read_back() {
    #[track_caller]
    fn check(error: &DecompileError, change: impl FnOnce(&mut Program)) {
        let mut program = sound();
        change(&mut program);
        assert_eq!(decompile(&program).as_ref(), Err(error));
    }
    check(&DecompileError::Unreachable(2), |program| {
        program.routes = program.routes[..1].into();
        program.slices = program.slices[..2].into();
    });
    check(&DecompileError::Inconsistent(1), |program| {
        program.code[6].route = RouteOperand::Absent;
    });
    check(&DecompileError::Inconsistent(1), |program| {
        program.code[6].slots[2] = SlotId(0);
    });
    check(&DecompileError::NotEveryRoute(3), |program| {
        program.slices[2].code_len -= 1;
    });
    check(&DecompileError::Dangling(4), |program| {
        program.code[8].policy.0 = 4;
    });
    check(&DecompileError::Dangling(2), |program| {
        program.code[7].slots[1] = SlotId(4);
    });
    let error = SelectorError::Empty;
    check(&DecompileError::Selector(2, error), |program| {
        program.code[7].slots = [SlotId::NONE; 3];
        program.code[7].route = RouteOperand::Absent;
    });
    let error = WindowsError::BurstNotShorter;
    check(&DecompileError::Windows(0, error), |program| {
        program.policies[0].sustained = secs(1, 1);
    });
    let error = WindowsError::TooLong;
    check(&DecompileError::Windows(0, error), |program| {
        program.policies[0].sustained = secs(1, u64::from(u32::MAX) + 1);
    });
}

proptest! {
    /// A changed program is refused, or it is the one program of the policies it executes: nothing the verifier lets pass
    /// can say something that lowering would not.
    #[test]
    fn what_verifies_is_what_lowering_makes(
        quota in quotas(),
        changes in prop::collection::vec((0_u8..20, any::<Index>(), any::<Index>(), 0_u32..6), 1..4),
    ) {
        let mut program = lower(&quota, &[]).expect("it lowers");
        for (what, at, other, number) in changes {
            change(&mut program, what, at, other, number);
        }
        let as_it_was = verify(&program).is_ok();
        program.digest = canonical::digest(&program);
        let with_its_digest = verify(&program).is_ok();
        prop_assert!(with_its_digest || !as_it_was);
        if with_its_digest {
            let policies = decompile(&program).expect("what verifies reads back");
            let again = lower(&policies, &[]).expect("it lowers");
            prop_assert_eq!(again.digest(), program.digest());
            if as_it_was {
                prop_assert_eq!(policies, quota);
            }
        }
    }
}

/// Some change of a program, mostly to another small number, so that several may fit each other.
fn change(program: &mut Program, what: u8, at: Index, other: Index, number: u32) {
    fn edit<T>(table: &mut [T], at: Index, edit: impl FnOnce(&mut T)) {
        if !table.is_empty() {
            edit(&mut table[at.index(table.len())]);
        }
    }
    fn swap<T>(table: &mut [T], at: Index, other: Index) {
        if !table.is_empty() {
            table.swap(at.index(table.len()), other.index(table.len()));
        }
    }
    let short = u16::try_from(number).expect("it is small");
    let place = other.index(3);
    let operands = [
        RouteOperand::Absent,
        RouteOperand::InTemplate,
        RouteOperand::FromRequest,
    ];
    match what {
        0 => edit(&mut program.code, at, |one| one.policy.0 = number),
        1 => edit(&mut program.code, at, |one| one.template.0 = number),
        2 => edit(&mut program.code, at, |one| one.slots[place].0 = short),
        3 => edit(&mut program.code, at, |one| one.slots[place] = SlotId::NONE),
        4 => edit(&mut program.code, at, |one| one.route = operands[place]),
        5 => swap(&mut program.code, at, other),
        6 => edit(&mut program.slices, at, |slice| slice.code_len = number),
        7 => edit(&mut program.slices, at, |slice| slice.sources_len = short),
        8 => swap(&mut program.slices, at, other),
        9 => edit(&mut program.slice_sources, at, |id| id.0 = number),
        10 => swap(&mut program.slice_sources, at, other),
        11 => swap(&mut program.sources, at, other),
        12 => edit(&mut program.routes, at, |(_, slice)| slice.0 = number),
        13 => swap(&mut program.routes, at, other),
        14 => swap(&mut program.policies, at, other),
        15 => swap(&mut program.templates, at, other),
        16 => edit(&mut program.policies, at, |row| {
            row.view.client = number.checked_sub(1).map(SourceId);
        }),
        17 => edit(&mut program.policies, at, |row| row.burst = secs(9, 1)),
        18 => edit(&mut program.policies, at, |row| {
            row.name = format!("renamed{number}").into();
        }),
        _ => program.any_route.0 = number,
    }
}
