//! The canonical bytes of a program: every table in order, integers little-endian, lists and strings behind their length. They
//! are digested and never stored, so their layout may change with the version in their first bytes.

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{Instruction, PolicyRow, Program, Slice, SourceId, WindowOperand};
use crate::settings::{BackendPlace, BackendSettings, FallbackSettings};
use crate::terms::Source;

/// Tells these bytes from any others, their version included.
const MAGIC: &[u8; 8] = b"QPROG\0\0\x01";

/// SHA-256 of the canonical bytes.
pub(crate) fn digest(program: &Program) -> [u8; 32] {
    let mut bytes = Bytes(Sha256::new());
    bytes.program(program);
    bytes.0.finalize().into()
}

/// Where the bytes go, piece by piece.
struct Bytes(Sha256);

impl Bytes {
    fn program(&mut self, program: &Program) {
        self.raw(MAGIC);
        self.flag(program.enabled);
        self.text(program.enforcement.as_str());
        self.text(program.failure_policy.as_str());
        self.backend(&program.backend);
        self.option(program.fallback.as_ref(), Self::fallback);
        self.list(&program.sources, Self::source);
        self.list(&program.policies, Self::policy);
        self.list(&program.templates, |bytes, template| bytes.blob(template));
        self.list(&program.slices, Self::slice);
        self.list(&program.slice_sources, |bytes, id| bytes.source_id(*id));
        self.list(&program.code, Self::instruction);
        self.list(&program.routes, |bytes, (name, slice)| {
            bytes.text(name);
            bytes.u32(slice.0);
        });
        self.u32(program.any_route.0);
    }

    fn backend(&mut self, backend: &BackendSettings) {
        self.text(&backend.kind);
        self.text(&backend.key_prefix);
        match backend.place {
            BackendPlace::Local { max_entries } => {
                self.raw(&[0]);
                self.u64(max_entries.get());
            }
            BackendPlace::Remote {
                connect_timeout_ms,
                command_timeout_ms,
                max_inflight,
            } => {
                self.raw(&[1]);
                self.u64(connect_timeout_ms.get());
                self.u64(command_timeout_ms.get());
                self.u64(max_inflight.get());
            }
        }
        self.option(backend.plugin.as_deref(), Self::text);
        self.option(backend.plugin_sha256.as_ref(), |bytes, sha256| {
            bytes.raw(sha256);
        });
        self.object(&backend.public_options());
    }

    fn fallback(&mut self, fallback: &FallbackSettings) {
        self.text(&fallback.key_prefix);
        self.u64(fallback.max_entries.get());
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.raw(&[0]),
            Value::Bool(flag) => {
                self.raw(&[1]);
                self.flag(*flag);
            }
            Value::Number(number) => {
                self.raw(&[2]);
                self.text(&number.to_string());
            }
            Value::String(text) => {
                self.raw(&[3]);
                self.text(text);
            }
            Value::Array(items) => {
                self.raw(&[4]);
                self.list(items, Self::value);
            }
            Value::Object(fields) => {
                self.raw(&[5]);
                self.object(fields);
            }
        }
    }

    /// Public options are sorted by name.
    fn object(&mut self, fields: &Map<String, Value>) {
        let fields: Vec<_> = fields.iter().collect();
        self.list(&fields, |bytes, (name, value)| {
            bytes.text(name);
            bytes.value(value);
        });
    }

    fn source(&mut self, source: &Source) {
        // The normalized spelling tells sources apart: a name follows the first colon, and the two without one have none.
        self.text(&source.to_string());
    }

    fn policy(&mut self, policy: &PolicyRow) {
        self.text(&policy.name);
        self.text(&policy.selector_dimensions);
        self.list(&policy.view.route_allowlist, |bytes, route| {
            bytes.text(route);
        });
        self.flag(policy.view.route);
        for source in [policy.view.tenant, policy.view.token, policy.view.client] {
            self.option(source.as_ref(), |bytes, id| bytes.source_id(*id));
        }
        for window in [policy.burst, policy.sustained] {
            self.option(window.as_ref(), Self::window);
        }
    }

    fn window(&mut self, window: &WindowOperand) {
        self.u64(window.requests.get());
        self.u64(window.length_ms.get());
    }

    fn slice(&mut self, slice: &Slice) {
        self.u32(slice.code_start);
        self.u32(slice.code_len);
        self.u32(slice.sources_start);
        self.raw(&slice.sources_len.to_le_bytes());
    }

    fn instruction(&mut self, instruction: &Instruction) {
        self.u32(instruction.policy.0);
        self.u32(instruction.template.0);
        for slot in instruction.slots {
            self.raw(&slot.0.to_le_bytes());
        }
        self.raw(&[instruction.route as u8, instruction.reserved]);
    }

    fn source_id(&mut self, id: SourceId) {
        self.u32(id.0);
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.length(items.len());
        for item in items {
            write(self, item);
        }
    }

    fn option<T: ?Sized>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    /// Lengths are 64 bits on every machine.
    fn length(&mut self, length: usize) {
        self.u64(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn flag(&mut self, flag: bool) {
        self.raw(&[u8::from(flag)]);
    }

    fn u32(&mut self, number: u32) {
        self.raw(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}
