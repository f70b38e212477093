//! Text → values with places, for files of ours that are YAML but no policy files (policy test cases). They are read by the
//! same scanner and the same rules for scalars, so that a value means the same in both.

use std::collections::HashSet;

use serde_json::Value;

use super::yaml::{Edge, NodeId, NodeKind, Tree, Via};
use super::{broken, gate, scalar, secret};
use crate::Limits;
use crate::span::{PolicyText, Span};

/// What a text holds, or why it cannot be told.
#[derive(Clone, Debug)]
pub struct PlainText {
    /// The text as read, its secrets marked.
    pub text: PolicyText,
    /// Its one document; `None` for an empty text, and where there are faults.
    pub root: Option<Plain>,
    /// Why it cannot be read: place, what is wrong, what to do.
    pub faults: Vec<PlainFault>,
}

/// Something that keeps a text from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainFault {
    /// Where.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    /// Where it stands; of an alias, where the alias stands.
    pub span: Span,
    /// The value.
    pub value: PlainValue,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum PlainValue {
    /// Null, a bool, a number or a text.
    Scalar(Value),
    /// `!!binary`: base64, as written.
    Binary(String),
    /// A list.
    List(Vec<Plain>),
    /// A mapping, in order; no key twice.
    Mapping(Vec<(Plain, Plain)>),
}

/// Reads `bytes`, called `name`: one document at most, no key twice, no tag but those of YAML's own types.
#[must_use]
pub fn read(name: &str, bytes: &[u8], limits: Limits) -> PlainText {
    let gated = gate::pass(bytes, limits);
    let mut read = PlainText {
        text: PolicyText::new(name, gated.text),
        root: None,
        faults: Vec::new(),
    };
    secret::hide_in_text(&mut read.text);
    let mut faults = gated.faults;
    if faults.is_empty() {
        let parsed = broken::parse(read.text.as_str(), limits.max_events);
        faults = parsed.faults;
        if faults.is_empty() {
            let mut builder = Builder {
                tree: &parsed.tree,
                left: limits.max_events,
                faults: Vec::new(),
            };
            read.root = builder.document();
            read.faults = builder.faults;
        }
    }
    read.faults
        .extend(faults.into_iter().map(|fault| PlainFault {
            span: fault.span,
            message: fault.message,
            help: fault.help,
        }));
    if !read.faults.is_empty() {
        read.root = None;
    }
    read
}

struct Builder<'t> {
    tree: &'t Tree,
    /// How many more values may be built, so that aliases of aliases end.
    left: u64,
    faults: Vec<PlainFault>,
}

impl Builder<'_> {
    fn document(&mut self) -> Option<Plain> {
        if let Some(second) = self.tree.documents.get(1) {
            self.fault(second.start, "a second document begins here".to_owned());
            return None;
        }
        let root = self.tree.documents.first()?.root?;
        self.value(root)
    }

    fn fault(&mut self, span: Span, message: String) {
        self.faults.push(PlainFault {
            span,
            message,
            help: None,
        });
    }

    fn value(&mut self, edge: Edge) -> Option<Plain> {
        let span = edge.span;
        match edge.via {
            Via::Itself | Via::Alias => {}
            Via::Cycle => {
                self.fault(
                    span,
                    "this alias stands for something that holds it".to_owned(),
                );
                return None;
            }
            Via::Misread => {
                self.fault(span, "the anchor of this alias is given twice".to_owned());
                return None;
            }
            Via::Unknown => {
                self.fault(span, "there is no anchor before this alias".to_owned());
                return None;
            }
        }
        let Some(left) = self.left.checked_sub(1) else {
            if self.faults.is_empty() {
                self.fault(span, "aliases expand to too many values".to_owned());
            }
            return None;
        };
        self.left = left;
        let value = self.node(edge.node, span)?;
        Some(Plain { span, value })
    }

    fn node(&mut self, id: NodeId, span: Span) -> Option<PlainValue> {
        const BINARY: &[u8] = b"tag:yaml.org,2002:binary";
        let node = self.tree.node(id);
        let local = scalar::local_tag(node.tag.as_deref()).map(str::to_owned);
        match &node.kind {
            NodeKind::Scalar { value, .. } if node.tag.as_deref() == Some(BINARY) => {
                Some(PlainValue::Binary(value.to_string()))
            }
            NodeKind::Scalar { .. } => {
                let read = scalar::scalar(node).map(scalar::Scalar::as_any)?;
                match read {
                    Ok(value) => Some(PlainValue::Scalar(value)),
                    Err(_) => {
                        self.fault(
                            span,
                            "this value is not one of the type it seems to be".to_owned(),
                        );
                        None
                    }
                }
            }
            _ if local.is_some() => {
                self.fault(span, "tags of one's own have no meaning here".to_owned());
                None
            }
            NodeKind::Sequence(items) => Some(PlainValue::List(
                items.iter().filter_map(|item| self.value(*item)).collect(),
            )),
            NodeKind::Mapping(pairs) => {
                let mut seen = HashSet::new();
                let mut mapping = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    let (key, value) = (self.value(*key), self.value(*value));
                    let (Some(key), Some(value)) = (key, value) else {
                        continue;
                    };
                    if let PlainValue::Scalar(name) = &key.value
                        && !seen.insert(name.to_string())
                    {
                        self.fault(key.span, format!("{name} is given twice"));
                        continue;
                    }
                    mapping.push((key, value));
                }
                Some(PlainValue::Mapping(mapping))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_json(plain: &Plain) -> Value {
        match &plain.value {
            PlainValue::Scalar(value) => value.clone(),
            PlainValue::Binary(text) => Value::String(format!("binary {text}")),
            PlainValue::List(items) => items.iter().map(to_json).collect(),
            PlainValue::Mapping(pairs) => pairs
                .iter()
                .map(|(key, value)| {
                    let key = to_json(key);
                    let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                    (name, to_json(value))
                })
                .collect(),
        }
    }

    #[test]
    fn values_are_those_of_policy_files() {
        let text = "a: [1, 0x10, -2, 1.5, true, null, 'x', \"y\", ~]\nb: { c: !!binary //4= }\nd: &d { e: 1 }\nf: *d\n";
        let read = read("t.yaml", text.as_bytes(), Limits::default());
        assert_eq!(read.faults, []);
        let expected = serde_json::json!({
            "a": [1, 16, -2, 1.5, true, null, "x", "y", null],
            "b": { "c": "binary //4=" },
            "d": { "e": 1 },
            "f": { "e": 1 }
        });
        assert_eq!(to_json(&read.root.expect("it can be read")), expected);
    }

    #[track_caller]
    fn check_fault(text: &str, line: u32, column: u32, message: &str) {
        let read = read("t.yaml", text.as_bytes(), Limits::default());
        assert_eq!(read.root, None);
        let [fault] = read.faults.as_slice() else {
            panic!("{:?}", read.faults);
        };
        let place = read.text.place(fault.span.start);
        assert_eq!(
            (place.line, place.column, &*fault.message),
            (line, column, message)
        );
    }

    #[test]
    fn what_cannot_be_read_has_a_place() {
        check_fault("a: 1\nb: 2\na: 3\n", 3, 1, "\"a\" is given twice");
        check_fault("a: 1\n---\nb: 2\n", 2, 1, "a second document begins here");
        check_fault("a: *b\n", 1, 4, "there is no anchor before this alias");
        check_fault(
            "a: &a [*a]\n",
            1,
            8,
            "this alias stands for something that holds it",
        );
    }

    #[test]
    fn aliases_of_aliases_end() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let former = format!("*a{}", level - 1);
            let line = format!(
                "a{level}: &a{level} [{}]\n",
                [former.as_str(); 10].join(", ")
            );
            text.push_str(&line);
        }
        let read = read("t.yaml", text.as_bytes(), Limits::default());
        assert_eq!(read.faults[0].message, "aliases expand to too many values");
    }
}
