//! Tables that fit a terminal: no row is ever wider, so the terminal breaks none.

use super::{Align, Table};

/// Characters between two columns.
const GAP: usize = 2;
/// Characters of a cell in one line of the upright form, at least: on a terminal that is narrower still, lines break.
const CELL_MIN: usize = 8;

impl Table {
    /// The table in at most so many characters a line; `None` for as many as it takes.
    ///
    /// Where it is wider, columns that say the same in every row become a line above the table. Where that is not
    /// enough, text of the last column takes several lines, if there is a third of the width for it; else
    /// [expendable](Table::expendable) columns are left out, and a line below names them. Where that is not enough
    /// either, each row becomes a paragraph with a line for each of its cells.
    #[must_use]
    pub fn within(&self, columns: Option<usize>) -> String {
        let Some(width) = columns.filter(|width| self.width() > *width) else {
            return self.to_string();
        };
        let (mut narrow, mut equal, mut missing) = (self.clone(), Vec::new(), Vec::new());
        for at in (1..self.columns.len()).rev() {
            if narrow.width() > width
                && let Some(cell) = self.shared(at)
            {
                let (heading, _) = &self.columns[at];
                equal.push(if heading.is_empty() {
                    cell.to_owned()
                } else {
                    format!("{heading}: {cell}")
                });
                narrow.remove(at);
            }
        }
        for heading in &self.expendable {
            let at = narrow.columns.iter().position(|(known, _)| known == heading);
            let still = narrow.width() > width && narrow.room_of_last(width).is_none();
            if let Some(at) = at.filter(|_| still) {
                missing.push(heading.clone());
                narrow.remove(at);
            }
        }
        if narrow.width() > width {
            let Some(room) = narrow.room_of_last(width) else { return self.upright(width) };
            narrow.fold_last(room);
        }
        equal.reverse();
        let mut text = String::new();
        if !equal.is_empty() {
            text += &format!("{}\n\n", folded(&format!("all rows: {}", equal.join("; ")), width));
        }
        text += &narrow.to_string();
        if !missing.is_empty() {
            let note = format!("left out for want of room: {}", missing.join(", "));
            text += &format!("{}\n", folded(&note, width));
        }
        text
    }

    /// Characters of the longest line.
    pub(super) fn width(&self) -> usize {
        self.widths().iter().sum::<usize>() + GAP * self.columns.len().saturating_sub(1)
    }

    /// Characters that the other columns leave to the last one, if that is enough and it is text.
    fn room_of_last(&self, width: usize) -> Option<usize> {
        let (last, (heading, align)) = (self.columns.len().checked_sub(1)?, self.columns.last()?);
        let others: usize = self.widths()[..last].iter().sum::<usize>() + GAP * last;
        let room = width.checked_sub(others)?;
        let fits = heading.chars().count() <= room && 3 * room >= width;
        (*align == Align::Left && fits).then_some(room)
    }

    /// Folds the cells of the last column into so much room: what does not fit stands in rows of its own below.
    fn fold_last(&mut self, room: usize) {
        let last = self.columns.len() - 1;
        for mut row in std::mem::take(&mut self.rows) {
            let cell = if row.len() > last { row.remove(last) } else { String::new() };
            let text = folded(&cell, room);
            let mut lines = text.lines();
            row.resize(last, String::new());
            row.push(lines.next().unwrap_or_default().to_owned());
            self.rows.push(row);
            self.rows.extend(lines.map(|line| {
                let empty = std::iter::repeat_n(String::new(), last);
                empty.chain([line.to_owned()]).collect()
            }));
        }
    }

    /// What a column says in all of several rows.
    fn shared(&self, column: usize) -> Option<&str> {
        let mut cells = self.rows.iter().map(|row| row.get(column).map(String::as_str));
        let first = cells.next()??;
        (self.rows.len() > 1 && cells.all(|cell| cell == Some(first))).then_some(first)
    }

    pub(super) fn remove(&mut self, column: usize) {
        self.columns.remove(column);
        for row in self.rows.iter_mut().filter(|row| column < row.len()) {
            row.remove(column);
        }
    }

    /// A paragraph a row: a line a cell, with its heading before it.
    pub(super) fn upright(&self, width: usize) -> String {
        let headings = self.columns.iter().map(|(heading, _)| heading.chars().count());
        let label = headings.max().unwrap_or(0);
        let room = width.saturating_sub(label + GAP).max(CELL_MIN);
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            let cells = self.columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
            for ((heading, _), cell) in cells {
                let mut heading = heading.as_str();
                for line in folded(cell, room).lines() {
                    text += format!("{heading:<label$}  {line}").trim_end();
                    text.push('\n');
                    heading = "";
                }
            }
        }
        text
    }
}

/// `text` in lines of so many characters, broken between words; a word that is longer is broken, too.
///
/// ```
/// assert_eq!(gapless_report::folded("to be or not", 6), "to be\nor not");
/// ```
#[must_use]
pub fn folded(text: &str, width: usize) -> String {
    let width = width.max(1);
    let (mut folded, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if used > 0 && used + 1 + len <= width {
            folded.push(' ');
            used += 1;
        } else if used > 0 {
            folded.push('\n');
            used = 0;
        }
        for c in word.chars() {
            if used == width {
                folded.push('\n');
                used = 0;
            }
            folded.push(c);
            used += 1;
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let right = |heading: &str| (heading.to_owned(), Align::Right);
        let left = |heading: &str| (heading.to_owned(), Align::Left);
        let columns = [
            left("case"),
            left("op"),
            right("blocks"),
            right("time"),
            right("÷memcpy"),
            left("bytes"),
        ];
        let mut table = Table::new(columns).expendable(["blocks", "op"]);
        table.push(["V n=512", "pack", "512", "1.00 µs", "0.98", "right"]);
        table.push(["T n=512", "unpack", "512", "12.0 µs", "0.70", "right"]);
        table.push(["NAS LU x n=12", "pack", "720", "2.00 µs", "0.50", "right"]);
        table
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn what_has_room_is_not_touched() {
        let table = table();
        assert_eq!(table.within(None), table.to_string());
        assert_eq!(table.within(Some(table.width())), table.to_string());
        assert_eq!(widest(&table.to_string()), table.width());
    }

    #[test]
    fn no_line_is_wider_than_it_may_be() {
        let table = table();
        for width in 17..table.width() {
            let text = table.within(Some(width));
            assert!(widest(&text) <= width, "{width}:\n{text}");
            for cell in ["V n=512", "T n=512", "1.00 µs", "12.0 µs", "0.98", "right"] {
                assert!(text.contains(cell), "{cell} at {width}:\n{text}");
            }
        }
        for width in 0..17 {
            assert!(table.within(Some(width)).contains("12.0 µs"));
        }
    }

    #[test]
    fn what_all_rows_share_is_said_once() {
        let table = table();
        assert_eq!(
            table.within(Some(table.width() - 1)),
            "all rows: bytes: right\n\n\
             case           op      blocks     time  ÷memcpy\n\
             ─────────────  ──────  ──────  ───────  ───────\n\
             V n=512        pack       512  1.00 µs     0.98\n\
             T n=512        unpack     512  12.0 µs     0.70\n\
             NAS LU x n=12  pack       720  2.00 µs     0.50\n"
        );
    }

    #[test]
    fn a_single_row_shares_nothing() {
        let mut table = Table::new([("name", Align::Left), ("value", Align::Left)]);
        table.push(["a", "b"]);
        assert_eq!(table.within(Some(9)), "name   a\nvalue  b\n");
    }

    #[test]
    fn the_least_important_columns_go_first_and_are_named() {
        assert_eq!(
            table().within(Some(39)),
            "all rows: bytes: right\n\n\
             case           op         time  ÷memcpy\n\
             ─────────────  ──────  ───────  ───────\n\
             V n=512        pack    1.00 µs     0.98\n\
             T n=512        unpack  12.0 µs     0.70\n\
             NAS LU x n=12  pack    2.00 µs     0.50\n\
             left out for want of room: blocks\n"
        );
        assert!(table().within(Some(31)).contains("left out for want of room:\nblocks, op\n"));
    }

    #[test]
    fn text_of_the_last_column_takes_several_lines() {
        let mut table =
            Table::new([("number", Align::Left), ("here", Align::Right), ("", Align::Left)]);
        table.push(["launch_ns", "-", "not measured: no CUDA here"]);
        table.push(["block_ns", "0.7", "ns"]);
        assert_eq!(
            table.within(Some(30)),
            "number     here\n\
             ─────────  ────  ─────────────\n\
             launch_ns     -  not measured:\n\
             \x20                no CUDA here\n\
             block_ns    0.7  ns\n"
        );
        assert!(table.within(Some(22)).starts_with("number  launch_ns\n"), "no room for it");
    }

    #[test]
    fn what_cannot_be_narrow_stands_upright_and_whole() {
        let text = table().within(Some(20));
        let first = "case     V n=512\nop       pack\nblocks   512\ntime     1.00 µs\n\
                     ÷memcpy  0.98\nbytes    right\n\ncase     T n=512\n";
        assert!(text.starts_with(first), "{text}");
        assert!(text.contains("case     NAS LU x\n         n=12\n"), "{text}");
    }

    #[test]
    fn words_are_broken_only_if_they_must_be() {
        assert_eq!(folded("to be or not", 6), "to be\nor not");
        assert_eq!(folded("abcdefgh ij", 3), "abc\ndef\ngh\nij");
        assert_eq!(folded("", 3), "");
    }
}
