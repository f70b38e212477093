//! The file's words as messages show them: in backticks, on one line, cut short where they are long, without the credentials
//! of a URL.

use crate::settings::url_without_credentials;

/// The most characters of one word.
const MAX_LENGTH: usize = 60;

/// `text` in backticks.
pub(crate) fn quote(text: &str) -> String {
    format!("`{}`", shortened(text))
}

/// `text` as it stands between the backticks.
pub(super) fn shortened(text: &str) -> String {
    let shown = visible(text);
    if shown.chars().count() <= MAX_LENGTH {
        return shown;
    }
    let start: String = shown.chars().take(MAX_LENGTH - 1).collect();
    format!("{start}…")
}

/// `text` at full length, as a field's path shows a name.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in url_without_credentials(text).chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Words as a message lists them: `a`, `b` and `c`.
pub(crate) fn listed<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    joined(words, "and")
}

/// As [`listed`], where one of them is to be chosen.
pub(crate) fn listed_or<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    joined(words, "or")
}

fn joined<'w>(words: impl IntoIterator<Item = &'w str>, conjunction: &str) -> String {
    let words: Vec<String> = words.into_iter().map(quote).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} {conjunction} {last}", first.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_on_one_line_cut_short_and_without_credentials() {
        assert_eq!(quote("a\nb\u{1b}"), "`a\\nb\\u{1b}`");
        assert_eq!(quote(&"é".repeat(60)), format!("`{}`", "é".repeat(60)));
        assert_eq!(quote(&"é".repeat(61)), format!("`{}…`", "é".repeat(59)));
        assert_eq!(quote("redis://u:p@h"), "`redis://h`");
        assert_eq!(visible(&"a".repeat(100)).len(), 100);
    }

    #[test]
    fn lists_name_the_last_word_with_a_conjunction() {
        assert_eq!(listed([]), "");
        assert_eq!(listed(["a"]), "`a`");
        assert_eq!(listed(["a", "b", "c"]), "`a`, `b` and `c`");
        assert_eq!(listed_or(["a", "b"]), "`a` or `b`");
    }
}
