//! Events → tree: every node with its place, aliases as edges to the node they name.

use std::collections::BTreeMap;

use super::events::{Event, EventKind, Events, Failure, Properties, Style};
use crate::span::Span;

/// A node of the tree, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// Every node of a text, and its documents.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    pub(super) documents: Vec<Document>,
    /// Aliases of anchors that do not exist: place, and name of the anchor.
    pub(super) unknown_anchors: Vec<(Span, String)>,
}

/// One document.
#[derive(Debug)]
pub(super) struct Document {
    /// Its node; `None` only where the text broke off before it.
    pub(super) root: Option<Edge>,
    /// Nodes, aliases and ends of lists and mappings: what `serde_yaml` measures the expansion of aliases by.
    pub(super) events: usize,
    /// Its `---`, or where it begins.
    pub(super) start: Span,
}

/// A list, mapping or scalar.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    /// Without anchor, tag and the blank text that follows.
    pub(super) span: Span,
    /// The resolved tag.
    pub(super) tag: Option<Box<[u8]>>,
    /// Whether the text broke off inside: what is not there may have been meant to be.
    pub(super) truncated: bool,
}

/// What a node holds.
#[derive(Debug)]
pub(super) enum NodeKind {
    Scalar { value: Box<str>, style: Style },
    Sequence(Vec<Edge>),
    Mapping(Vec<(Edge, Edge)>),
}

/// The use of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) node: NodeId,
    /// The node's own place, or that of the alias.
    pub(super) span: Span,
    pub(super) via: Via,
}

/// How a node is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// Where it stands.
    Itself,
    /// Through an alias.
    Alias,
    /// Through an alias inside the node itself.
    Cycle,
    /// Through an alias that `serde_yaml` takes for another node: it numbers anchors by how many names it has seen, so an
    /// anchor given twice shares its number with the next new one.
    Misread,
    /// Through an alias of no node; `node` is an empty stand-in. Reported in [`Tree::unknown_anchors`].
    Unknown,
}

impl Tree {
    /// The node `id`.
    pub(super) fn node(&self, id: NodeId) -> &Node {
        // INVARIANT: ids are made by `push` alone, from the length of this vector, which never shrinks.
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        // INVARIANT: as in `node`.
        &mut self.nodes[id.0 as usize]
    }

    fn push(&mut self, node: Node) -> NodeId {
        // Texts are shorter than 4 GiB (`gate`), and a node takes a byte of it at least, but for the empty ones beside one.
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        id
    }
}

impl Node {
    /// Whether it is a plain scalar without text, which `serde_yaml` takes for an empty list or mapping where one is expected.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { value, style: Style::Plain } if value.is_empty())
    }
}

/// The tree of `text`, as far as it goes, and why it does not go further.
pub(super) fn parse(text: &str, max_events: u64) -> (Tree, Option<Failure>) {
    let mut builder = Builder {
        text,
        tree: Tree::default(),
        open: Vec::new(),
        anchors: Anchors::default(),
    };
    let mut events = Events::new(text, max_events);
    let failure = loop {
        match events.next() {
            Ok(Some(event)) => builder.take(event),
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        }
    };
    if let Some(failure) = &failure {
        builder.break_off(failure);
    }
    (builder.tree, failure)
}

struct Builder<'text> {
    text: &'text str,
    tree: Tree,
    open: Vec<Open>,
    anchors: Anchors,
}

/// A list or mapping whose end has not come yet.
struct Open {
    node: NodeId,
    flow: bool,
    /// The key whose value comes next.
    key: Option<Edge>,
}

/// The anchors of a document, by name and as `serde_yaml` numbers them.
#[derive(Default)]
struct Anchors {
    by_name: BTreeMap<Box<[u8]>, (NodeId, usize)>,
    by_number: BTreeMap<usize, NodeId>,
    /// Aliases to look at again at the end of the document: where the edge is, and `serde_yaml`'s number.
    uses: Vec<(Place, NodeId, usize)>,
}

/// Where an edge is kept.
#[derive(Clone, Copy)]
enum Place {
    Item(NodeId, usize),
    Key(NodeId, usize),
    Value(NodeId, usize),
}

impl Builder<'_> {
    fn take(&mut self, event: Event) {
        let span = event.span;
        if let Some(document) = self.tree.documents.last_mut()
            && !matches!(
                event.kind,
                EventKind::DocumentStart | EventKind::DocumentEnd
            )
        {
            document.events += 1;
        }
        match event.kind {
            EventKind::DocumentStart => {
                self.anchors = Anchors::default();
                self.tree.documents.push(Document {
                    root: None,
                    events: 0,
                    start: span,
                });
            }
            EventKind::DocumentEnd => self.resolve_aliases(),
            EventKind::Alias { anchor } => self.alias(&anchor, span),
            EventKind::Scalar {
                properties,
                value,
                style,
            } => {
                let place = self.scalar_place(span, &properties, style);
                let kind = NodeKind::Scalar { value, style };
                let node = self.define(kind, place, properties);
                self.attach(Edge {
                    node,
                    span: place,
                    via: Via::Itself,
                });
            }
            EventKind::SequenceStart { properties, flow } => {
                self.start(NodeKind::Sequence(Vec::new()), span, properties, flow);
            }
            EventKind::MappingStart { properties, flow } => {
                self.start(NodeKind::Mapping(Vec::new()), span, properties, flow);
            }
            EventKind::SequenceEnd | EventKind::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.end(&open, open.flow.then_some(span.end));
                }
            }
        }
    }

    /// A new node under its anchor.
    fn define(&mut self, kind: NodeKind, span: Span, properties: Properties) -> NodeId {
        let node = self.tree.push(Node {
            kind,
            span,
            tag: properties.tag,
            truncated: false,
        });
        if let Some(anchor) = properties.anchor {
            // serde_yaml numbers a new anchor by how many names there are before it.
            let number = self.anchors.by_name.len();
            self.anchors.by_name.insert(anchor, (node, number));
            self.anchors.by_number.insert(number, node);
        }
        node
    }

    fn start(&mut self, kind: NodeKind, span: Span, properties: Properties, flow: bool) {
        let start = if properties == Properties::default() {
            span.start
        } else {
            self.after_properties(span.start, self.text.len())
        };
        let node = self.define(kind, Span::at(start), properties);
        self.open.push(Open {
            node,
            flow,
            key: None,
        });
    }

    /// Ends the list or mapping `open`, at `end` or where its last part ends.
    fn end(&mut self, open: &Open, end: Option<u32>) {
        let node = self.tree.node(open.node);
        let last = match &node.kind {
            NodeKind::Sequence(items) => items.last().map(|item| item.span.end),
            NodeKind::Mapping(pairs) => pairs
                .last()
                .map(|(key, value)| value.span.end.max(key.span.end)),
            NodeKind::Scalar { .. } => None,
        };
        let end = end.or(last).unwrap_or(node.span.start);
        let span = Span::new(node.span.start, end.max(node.span.start));
        self.tree.node_mut(open.node).span = span;
        self.attach(Edge {
            node: open.node,
            span,
            via: Via::Itself,
        });
    }

    fn alias(&mut self, anchor: &[u8], span: Span) {
        if let Some((node, number)) = self.anchors.by_name.get(anchor).copied() {
            let inside_itself = self.open.iter().any(|open| open.node == node);
            let via = if inside_itself {
                Via::Cycle
            } else {
                Via::Alias
            };
            if let Some(place) = self.attach(Edge { node, span, via })
                && !inside_itself
            {
                self.anchors.uses.push((place, node, number));
            }
            return;
        }
        let name = String::from_utf8_lossy(anchor).into_owned();
        self.tree.unknown_anchors.push((span, name));
        let kind = NodeKind::Scalar {
            value: Box::default(),
            style: Style::Plain,
        };
        let node = self.define(kind, span, Properties::default());
        self.attach(Edge {
            node,
            span,
            via: Via::Unknown,
        });
    }

    /// Puts an edge where the next one belongs. `None` at the root of a document.
    fn attach(&mut self, edge: Edge) -> Option<Place> {
        let Some(open) = self.open.last_mut() else {
            if let Some(document) = self.tree.documents.last_mut() {
                document.root = Some(edge);
            }
            return None;
        };
        let parent = open.node;
        let key = open.key;
        match &mut self.tree.nodes[parent.0 as usize].kind {
            NodeKind::Sequence(items) => {
                items.push(edge);
                Some(Place::Item(parent, items.len() - 1))
            }
            NodeKind::Mapping(pairs) => {
                if let Some(key) = key {
                    open.key = None;
                    pairs.push((key, edge));
                    Some(Place::Value(parent, pairs.len() - 1))
                } else {
                    open.key = Some(edge);
                    // The pair is pushed with the value, so this will be its number.
                    Some(Place::Key(parent, pairs.len()))
                }
            }
            NodeKind::Scalar { .. } => None,
        }
    }

    /// Marks the aliases of the document that `serde_yaml` takes for others.
    fn resolve_aliases(&mut self) {
        let uses = std::mem::take(&mut self.anchors.uses);
        for (place, node, number) in uses {
            if self.anchors.by_number.get(&number) == Some(&node) {
                continue;
            }
            let edge = match place {
                Place::Item(parent, index) => match &mut self.tree.node_mut(parent).kind {
                    NodeKind::Sequence(items) => items.get_mut(index),
                    NodeKind::Mapping(_) | NodeKind::Scalar { .. } => None,
                },
                Place::Key(parent, index) | Place::Value(parent, index) => {
                    match &mut self.tree.node_mut(parent).kind {
                        NodeKind::Mapping(pairs) => {
                            pairs.get_mut(index).map(|(key, value)| match place {
                                Place::Key(..) => key,
                                Place::Item(..) | Place::Value(..) => value,
                            })
                        }
                        NodeKind::Sequence(_) | NodeKind::Scalar { .. } => None,
                    }
                }
            };
            if let Some(edge) = edge {
                edge.via = Via::Misread;
            }
        }
    }

    /// Ends everything that is still open where the text broke off.
    fn break_off(&mut self, failure: &Failure) {
        let at = match failure {
            Failure::Syntax { at, .. } => *at,
            Failure::TooDeep(span) | Failure::TooMany(span) => span.start,
        };
        let line = self
            .text
            .get(..at as usize)
            .and_then(|before| before.rfind(['\n', '\r']))
            .map_or(0, |newline| newline + 1);
        // What the scanner read of the line it broke off in is as likely wrong as right.
        if let Some(open) = self.open.last_mut() {
            open.key = None;
            match &mut self.tree.nodes[open.node.0 as usize].kind {
                NodeKind::Sequence(items) => {
                    items.pop_if(|item| item.span.end as usize >= line);
                }
                NodeKind::Mapping(pairs) => {
                    pairs.pop_if(|(_, value)| value.span.end as usize >= line);
                }
                NodeKind::Scalar { .. } => {}
            }
        }
        while let Some(open) = self.open.pop() {
            self.tree.node_mut(open.node).truncated = true;
            self.end(&open, None);
        }
        // What stands behind a document that has ended may have been meant to be part of it.
        if let Some(Document {
            root: Some(root), ..
        }) = self.tree.documents.last()
        {
            let root = root.node;
            self.tree.node_mut(root).truncated = true;
        }
        self.resolve_aliases();
    }

    /// The place of a scalar without its properties and the line breaks after a block scalar.
    fn scalar_place(&self, span: Span, properties: &Properties, style: Style) -> Span {
        let start = if *properties == Properties::default() {
            span.start
        } else {
            self.after_properties(span.start, span.end as usize)
        };
        let end = if style == Style::Plain {
            span.end
        } else {
            let text = self
                .text
                .get(start as usize..span.end as usize)
                .unwrap_or("");
            start + u32::try_from(text.trim_end().len()).unwrap_or(0)
        };
        Span::new(start, end)
    }

    /// Where the node at `start` begins after its anchor and tag, at most `end`.
    fn after_properties(&self, start: u32, end: usize) -> u32 {
        let mut rest = self.text.get(start as usize..end).unwrap_or("");
        loop {
            rest = rest.trim_start();
            if rest.starts_with('#') {
                rest = rest.find('\n').and_then(|at| rest.get(at..)).unwrap_or("");
            } else if rest.starts_with(['&', '!']) {
                let blank = rest.find(char::is_whitespace).unwrap_or(rest.len());
                rest = rest.get(blank..).unwrap_or("");
            } else {
                break;
            }
        }
        u32::try_from(end.saturating_sub(rest.len())).unwrap_or(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as text: scalars as their source, lists and mappings with the source of theirs after `@`.
    fn show(text: &str) -> String {
        let (tree, failure) = parse(text, 10_000);
        let mut out = String::new();
        for document in &tree.documents {
            match document.root {
                Some(edge) => write_edge(&tree, text, edge, &mut out),
                None => out.push_str("(none)"),
            }
            out.push(';');
        }
        if failure.is_some() {
            out.push('!');
        }
        out
    }

    fn write_edge(tree: &Tree, text: &str, edge: Edge, out: &mut String) {
        let source = text
            .get(edge.span.range())
            .expect("a place inside the text");
        if edge.via != Via::Itself {
            out.push_str(&format!("{source}:{:?}", edge.via));
            return;
        }
        let node = tree.node(edge.node);
        match &node.kind {
            NodeKind::Scalar { .. } => out.push_str(&format!("<{source}>")),
            NodeKind::Sequence(items) => {
                out.push('[');
                for item in items {
                    write_edge(tree, text, *item, out);
                }
                out.push_str(&format!("]@{source:?}"));
            }
            NodeKind::Mapping(pairs) => {
                out.push('{');
                for (key, value) in pairs {
                    write_edge(tree, text, *key, out);
                    write_edge(tree, text, *value, out);
                }
                out.push_str(&format!("}}@{source:?}"));
            }
        }
        if node.truncated {
            out.push('~');
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(show(text), expected);
    }

    #[test]
    fn places_leave_out_properties_and_blank_text() {
        check("a: 1\n\n# c\n", r#"{<a><1>}@"a: 1";"#);
        check("a:\n", r#"{<a><>}@"a:";"#);
        check(
            "- x\n-   [ y ]  \n\n",
            r#"[<x>[<y>]@"[ y ]"]@"- x\n-   [ y ]";"#,
        );
        check("a: &w !!int 5\n", r#"{<a><5>}@"a: &w !!int 5";"#);
        check(
            "a: &w # c\n  b: 1\n",
            r#"{<a>{<b><1>}@"b: 1"}@"a: &w # c\n  b: 1";"#,
        );
        check(
            "a: &w {b: 1}\n",
            r#"{<a>{<b><1>}@"{b: 1}"}@"a: &w {b: 1}";"#,
        );
        check(
            "a: |\n  x\n\nb: 1",
            r#"{<a><|
  x><b><1>}@"a: |\n  x\n\nb: 1";"#,
        );
        check("a: &w\n", r#"{<a><>}@"a: &w";"#);
        check("\u{feff}a: b", r#"{<a><b>}@"a: b";"#);
    }

    #[test]
    fn aliases_are_edges() {
        check("[&a 1, *a]", r#"[<1>*a:Alias]@"[&a 1, *a]";"#);
        check("&a [*a]", r#"[*a:Cycle]@"[*a]";"#);
        check("[*b]", r#"[*b:Unknown]@"[*b]";"#);
        check("{*b : *b}", r#"{*b:Unknown*b:Unknown}@"{*b : *b}";"#);
    }

    #[test]
    fn an_anchor_given_twice_may_be_misread() {
        // Two anchors of one name are told apart, unless a new name follows.
        check(
            "[&a 1, &a 2, *a]",
            r#"[<1><2>*a:Alias]@"[&a 1, &a 2, *a]";"#,
        );
        check(
            "[&a 1, &a 2, *a, &b 3, *b]",
            r#"[<1><2>*a:Misread<3>*b:Alias]@"[&a 1, &a 2, *a, &b 3, *b]";"#,
        );
        let read: Vec<u64> = serde_yaml::from_str("[&a 1, &a 2, *a, &b 3, *b]").expect("a list");
        assert_eq!(read, [1, 2, 3, 3, 3], "what serde_yaml makes of it");
    }

    #[test]
    fn documents_stand_side_by_side() {
        check("a\n---\nb\n", "<a>;<b>;");
        check("--- a\n...\n--- b", "<a>;<b>;");
        check("", "");
        check("---\n", "<>;");
    }

    #[test]
    fn a_broken_text_gives_what_stands_before_the_line() {
        check(
            "a: 1\nb: 2\nc: [3\n",
            r#"{<a><1><b><2><c>[<3>]@"[3"~}@"a: 1\nb: 2\nc: [3"~;!"#,
        );
        check("a: 1\nb: header: x\n", r#"{<a><1>}@"a: 1"~;!"#);
    }
}
