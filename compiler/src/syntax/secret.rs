//! Which parts of a text are credentials, so that no output shows them.

use std::collections::BTreeSet;

use super::yaml::{Edge, NodeId, NodeKind, Tree};
use crate::settings::is_secret_name;
use crate::span::{PolicyText, Span};

/// Hides what looks like a credential in any text, read or not: passwords of URLs, and what follows `password:`.
pub(super) fn hide_in_text(text: &mut PolicyText) {
    let mut found = Vec::new();
    url_passwords(text.as_str(), 0, &mut found);
    let mut line_start = 0;
    for line in text.as_str().split_inclusive(['\n', '\r']) {
        passwords_of_line(line, line_start, &mut found);
        line_start += line.len();
    }
    for secret in found {
        text.hide(secret);
    }
}

/// What follows each `password:` of `line`, which stands at `base`.
fn passwords_of_line(line: &str, base: usize, found: &mut Vec<Span>) {
    let mut from = 0;
    while let Some(rest) = line.get(from..)
        && let Some(colon) = rest.find(':')
    {
        let name = rest.get(..colon).unwrap_or("");
        let in_flow = name.contains(['{', ',']);
        let name = name.rsplit(['{', ',']).next().unwrap_or("");
        let after = from + colon + 1;
        if !is_credential_key(name) {
            from = after;
            continue;
        }
        let value = line.get(after..).unwrap_or("");
        let blank = value.len() - value.trim_start().len();
        let value = value.trim();
        let length = if in_flow {
            flow_length(value)
        } else {
            value.len()
        };
        found.push(span(base + after + blank, base + after + blank + length));
        from = after + blank + length;
    }
}

/// The length of the first value of `rest`, which goes on inside braces: to the end of its quotes, or of the line where it
/// cannot be told.
fn flow_length(rest: &str) -> usize {
    let quote = rest
        .chars()
        .next()
        .filter(|first| matches!(first, '"' | '\''));
    let end = match quote {
        Some(quote) => rest
            .get(1..)
            .and_then(|inner| inner.find(quote))
            .map(|end| end + 2),
        None => rest.find([',', '}']),
    };
    end.unwrap_or(rest.len())
}

/// Whether what follows `name` and a colon is a credential. The bare word `token` is left out: a selector has one.
pub(super) fn is_credential_key(name: &str) -> bool {
    let name = name.trim_matches(|character: char| !character.is_alphanumeric());
    name.len() <= 64 && {
        let name = name.to_ascii_lowercase();
        let is_token = name.contains("token");
        if is_token {
            name.ends_with("_token") && name != "bearer_token"
        } else {
            is_secret_name(&name)
        }
    }
}

/// Hides the credentials of `backend`, whose value is `edge`: passwords of URLs in any string, and whole values of options
/// with a secret's name.
pub(super) fn hide_in_backend(text: &mut PolicyText, tree: &Tree, edge: Edge) {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    // A worklist, not recursion: aliases may nest deeper than the text.
    let mut work = vec![(edge.node, false)];
    while let Some((id, secret)) = work.pop() {
        if !seen.insert((id, secret)) {
            continue;
        }
        let node = tree.node(id);
        if secret {
            found.push(node.span);
        }
        match &node.kind {
            NodeKind::Scalar { value, .. } => {
                hide_in_scalar(text.as_str(), node.span, value, &mut found);
            }
            NodeKind::Sequence(items) => work.extend(items.iter().map(|item| (item.node, secret))),
            NodeKind::Mapping(pairs) => work.extend(pairs.iter().map(|(key, value)| {
                let named = scalar(tree, key.node).is_some_and(is_secret_name);
                (value.node, secret || named)
            })),
        }
    }
    for secret in found {
        text.hide(secret);
    }
}

fn scalar(tree: &Tree, id: NodeId) -> Option<&str> {
    match &tree.node(id).kind {
        NodeKind::Scalar { value, .. } => Some(value),
        NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
    }
}

fn hide_in_scalar(text: &str, place: Span, value: &str, found: &mut Vec<Span>) {
    let Some((_, after)) = value.split_once("://") else {
        return;
    };
    let Some(source) = text.get(place.range()) else {
        return;
    };
    let before = found.len();
    let has_query_password = after
        .split(['?', '&'])
        .any(|pair| pair.to_ascii_lowercase().starts_with("pass"));
    if after.contains('@') || has_query_password {
        if let Some(scheme) = source.find("://") {
            userinfo(source, scheme + 3, source.len(), place.start, found);
            query_passwords(source, scheme + 3, place.start, found);
        }
        // Written with escapes, it cannot be told which bytes are the password.
        if found.len() == before {
            found.push(place);
        }
    }
}

/// The passwords of every URL in `text`, which stands at `base`. A URL ends at white space or a quote.
fn url_passwords(text: &str, base: u32, found: &mut Vec<Span>) {
    let mut from = 0;
    while let Some(scheme) = text.get(from..).and_then(|rest| rest.find("://")) {
        let start = from + scheme + 3;
        let rest = text.get(start..).unwrap_or("");
        let length = rest
            .find(|character: char| character.is_whitespace() || matches!(character, '"' | '\''))
            .unwrap_or(rest.len());
        userinfo(text, start, start + length, base, found);
        if let Some(url) = text.get(..start + length) {
            query_passwords(url, start, base, found);
        }
        from = start + length;
    }
}

/// The password before the last `@` of the URL whose scheme ends at `start`; all of the user information where no colon
/// tells the name from it.
fn userinfo(text: &str, start: usize, end: usize, base: u32, found: &mut Vec<Span>) {
    let Some(url) = text.get(start..end) else {
        return;
    };
    if let Some(at) = url.rfind('@') {
        let password = url
            .get(..at)
            .and_then(|before| before.find(':'))
            .map_or(0, |colon| colon + 1);
        found.push(shifted(base, start + password, start + at));
    }
}

/// The values of `pass=` and `password=` in the query of the URL that ends `text` and whose scheme ends at `start`.
fn query_passwords(text: &str, start: usize, base: u32, found: &mut Vec<Span>) {
    let mut at = start;
    for pair in text.get(start..).unwrap_or("").split(['?', '&']) {
        if let Some((name, value)) = pair.split_once('=')
            && name.to_ascii_lowercase().starts_with("pass")
        {
            let value_start = at + name.len() + 1;
            found.push(shifted(base, value_start, value_start + value.len()));
        }
        at += pair.len() + 1;
    }
}

fn shifted(base: u32, start: usize, end: usize) -> Span {
    let place = span(start, end);
    Span::new(base + place.start, base + place.end)
}

fn span(start: usize, end: usize) -> Span {
    let offset = |at| u32::try_from(at).unwrap_or(u32::MAX);
    Span::new(offset(start), offset(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::yaml;

    #[track_caller]
    fn check_text(text: &str, expected: &str) {
        let mut text = PolicyText::new("p.yaml", text);
        hide_in_text(&mut text);
        assert_eq!(text.shown(), expected);
    }

    #[track_caller]
    fn check_backend(text: &str, expected: &str) {
        let (tree, _) = yaml::parse(text, 1000);
        let root = tree.documents[0].root.expect("a root");
        let mut text = PolicyText::new("p.yaml", text);
        hide_in_backend(&mut text, &tree, root);
        assert_eq!(text.shown(), expected);
    }

    #[test]
    fn any_text_hides_passwords_of_urls_and_of_lines() {
        check_text("url: redis://u:pw@h/0 # x@y", "url: redis://u:**@h/0 # x@y");
        check_text("url: 'redis://:p@w@h'", "url: 'redis://:***@h'");
        check_text("url: redis://token@h", "url: redis://*****@h");
        check_text("unix:///s?db=1&pass=xy&a=b", "unix:///s?db=1&pass=**&a=b");
        check_text("- my_password:  x y\nb: 1", "- my_password:  ***\nb: 1");
        check_text(
            "b: {my_secret: a b, 'password': \"c, d\", e: f",
            "b: {my_secret: ***, 'password': ******, e: f",
        );
        check_text("{a: 1, password: \"b, c", "{a: 1, password: *****");
        check_text(
            "{auth_token: ab, 'Private_Key' : cd}",
            "{auth_token: **, 'Private_Key' : **}",
        );
        check_text("url: \"redis://u:pw@h", "url: \"redis://u:**@h");
        check_text("headers: {x-token: a}", "headers: {x-token: a}");
        check_text("token:\n  key: header:x", "token:\n  key: header:x");
        check_text("url: redis://h:6379/0", "url: redis://h:6379/0");
        check_text("a://b c://", "a://b c://");
    }

    #[test]
    fn a_backend_hides_more() {
        check_backend("{url: 'redis://u:p w@h'}", "{url: 'redis://u:***@h'}");
        check_backend("{url: \"redis:\\x2f/u:p@h\"}", "{url: ******************}");
        check_backend("{tokens: [a, b], z: c}", "{tokens: ******, z: c}");
        check_backend(
            "{a: {Sentinel_Password: &x pw}}",
            "{a: {Sentinel_Password: &x **}}",
        );
        check_backend("{a: &x pw, secret: *x}", "{a: &x **, secret: *x}");
        check_backend("&a {secret: *a}", "&a ************");
    }
}
