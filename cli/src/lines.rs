//! Text in lines that fit a terminal, so that the terminal breaks none in the middle of a word.

use super::failure::Failure;
use super::say;
use gapless_report::terminal_columns;

/// Text on standard output. Lines that are wider than the terminal are broken between words.
pub(super) fn tell(text: &str) -> Result<(), Failure> {
    say(&fit(text, terminal_columns()))
}

/// `text` in lines of at most so many characters; `None` for as many as they take. What follows a break begins where
/// the text of the line began: behind its label, if two spaces set one off. Words that are longer stay whole.
pub(super) fn fit(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let mut fitted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let end = if line.ends_with('\n') { "\n" } else { "" };
        let characters: Vec<char> = line.trim_end_matches('\n').chars().collect();
        let (hang, label) = hang(&characters, columns);
        let mut rest = characters.as_slice();
        let mut indent = 0;
        while indent + rest.len() > columns
            && let Some(cut) = cut(rest, columns - indent, if indent == 0 { label } else { 0 })
        {
            fitted.extend(&rest[..cut]);
            fitted = fitted.trim_end_matches(' ').to_owned();
            fitted.push('\n');
            fitted.extend(std::iter::repeat_n(' ', hang));
            rest = &rest[cut..];
            let blank = rest.iter().take_while(|&&c| c == ' ').count();
            rest = &rest[blank..];
            indent = hang;
        }
        fitted.extend(rest);
        fitted.push_str(end);
    }
    fitted
}

/// Where lines that continue this one begin, and where its label ends.
fn hang(line: &[char], columns: usize) -> (usize, usize) {
    let indent = line.iter().take_while(|&&c| c == ' ').count();
    let gap = line[indent..].windows(2).position(|two| two == [' ', ' ']);
    let behind_label = gap.map(|gap| {
        let from = indent + gap;
        from + line[from..].iter().take_while(|&&c| c == ' ').count()
    });
    let fallback = (indent + 2).min(columns / 2);
    behind_label.filter(|&at| at <= columns / 2).map_or((fallback, 0), |at| (at, at))
}

/// Where to break a line: at the last space that leaves at most `width` characters before it; failing that, at the
/// first one after. None in the label, and none at the end.
fn cut(line: &[char], width: usize, label: usize) -> Option<usize> {
    let is_break = |&at: &usize| line[at] == ' ' && line[..at].iter().any(|&c| c != ' ');
    let from = label.max(1).min(line.len());
    let before = (from..line.len().min(width + 1)).rev().find(is_break);
    let after = || (from.max(width + 1)..line.len()).find(is_break);
    before.or_else(after).filter(|&at| line[at..].iter().any(|&c| c != ' '))
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn what_fits_is_not_touched() {
        let text = "a  b\n\n  c   d e\nlast";
        assert_eq!(fit(text, Some(9)), text);
        assert_eq!(
            fit("a long line that nobody breaks\n", None),
            "a long line that nobody breaks\n"
        );
    }

    #[test]
    fn lines_go_on_behind_their_label() {
        assert_eq!(
            fit("space host     there is some of it\nnext\n", Some(30)),
            "space host     there is some\n               of it\nnext\n"
        );
        assert_eq!(fit("  one two three four\n", Some(12)), "  one two\n    three\n    four\n");
        assert_eq!(
            fit("  2  reduce   a = b  after 1", Some(20)),
            "  2  reduce   a = b\n     after 1"
        );
    }

    #[test]
    fn long_words_stay_whole() {
        assert_eq!(fit("a /a/very/long/path of it", Some(10)), "a\n  /a/very/long/path\n  of it");
        assert_eq!(fit("/a/very/long/path", Some(10)), "/a/very/long/path");
    }

    #[test]
    fn no_line_is_wider_if_its_words_are_not() {
        let words = "numbers of a machine: 12 ns, 34 MB/s, eager up to 32.2 KiB and so on µs ÷ 1.0";
        for columns in 12..90 {
            let fitted = fit(words, Some(columns));
            assert!(
                fitted.lines().all(|line| line.chars().count() <= columns),
                "{columns}: {fitted}"
            );
            let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(squeeze(&fitted), words);
        }
    }
}
