//! A table whose rows are shown one by one, as they come.

use super::Table;

/// A [`Table`] whose columns have their widths before its rows are known: each row is a text of its own.
///
/// ```
/// use gapless_report::{Align, Table};
///
/// let mut table = Table::new([("name", Align::Left), ("time", Align::Right)]);
/// table.push(["longest name", "99.9 µs"]); // what cells are not wider than
/// let growing = table.growing(None);
/// assert_eq!(growing.head(), "name             time\n────────────  ───────\n");
/// assert_eq!(growing.row(["a", "1 s"]), "a                 1 s\n");
/// ```
#[derive(Clone, Debug)]
pub struct Growing {
    /// All headings.
    all: Table,
    /// The columns that there is room for.
    kept: Vec<usize>,
    widths: Vec<usize>,
    missing: Vec<String>,
    /// How wide the terminal is, if it is too narrow even for those: each row becomes a paragraph.
    upright: Option<usize>,
}

impl Table {
    /// The same columns, as wide as the rows so far need, for rows to come. Of so many characters a line;
    /// [expendable](Table::expendable) columns are left out where there is no room.
    #[must_use]
    pub fn growing(&self, columns: Option<usize>) -> Growing {
        let limit = columns.unwrap_or(usize::MAX);
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let (mut narrow, mut missing) = (self.clone(), Vec::new());
        for heading in &self.expendable {
            let at = narrow.columns.iter().position(|(known, _)| known == heading);
            if let Some(at) = at.filter(|_| narrow.width() > limit) {
                narrow.remove(at);
                kept.remove(at);
                missing.push(heading.clone());
            }
        }
        let upright = columns.filter(|limit| narrow.width() > *limit);
        let widths = narrow.widths();
        Growing { all: Table { rows: Vec::new(), ..self.clone() }, kept, widths, missing, upright }
    }
}

impl Growing {
    /// The headings; nothing where each row has its own.
    #[must_use]
    pub fn head(&self) -> String {
        if self.upright.is_some() {
            return String::new();
        }
        let headings = self.all.columns.iter().map(|(heading, _)| heading.as_str());
        let rules: Vec<String> = self.widths.iter().map(|width| "─".repeat(*width)).collect();
        let rules = rules.iter().map(String::as_str);
        let mut text = match self.missing.is_empty() {
            true => String::new(),
            false => format!("left out for want of room: {}\n", self.missing.join(", ")),
        };
        text += &self.line(self.kept(headings));
        text += &self.line(rules);
        text
    }

    /// A row. Cells that are wider than the rows before push the rest aside.
    #[must_use]
    pub fn row<C: Into<String>>(&self, cells: impl IntoIterator<Item = C>) -> String {
        let mut table = self.all.clone();
        table.push(cells);
        if let Some(width) = self.upright {
            return format!("{}\n", table.upright(width));
        }
        self.line(self.kept(table.rows[0].iter().map(String::as_str)))
    }

    fn kept<'a>(&self, cells: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
        cells.enumerate().filter(|(at, _)| self.kept.contains(at)).map(|(_, cell)| cell)
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>) -> String {
        let aligns = self.kept.iter().map(|at| self.all.columns[*at].1);
        super::line(&self.widths, aligns, cells)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Align;
    use super::*;

    #[test]
    fn rows_come_one_by_one_in_what_room_there_is() {
        let headings = [("case", Align::Left), ("blocks", Align::Right), ("time", Align::Right)];
        let mut table = Table::new(headings).expendable(["blocks"]);
        table.push(["V n=64", "9", "1.00 µs"]);
        let wide = table.growing(Some(80));
        assert_eq!(wide.head(), "case    blocks     time\n──────  ──────  ───────\n");
        assert_eq!(wide.row(["T", "12", "3 s"]), "T           12      3 s\n");
        let narrow = table.growing(Some(20));
        let head = "left out for want of room: blocks\ncase       time\n──────  ───────\n";
        assert_eq!(narrow.head(), head);
        assert_eq!(narrow.row(["T", "12", "3 s"]), "T           3 s\n");
        assert_eq!(narrow.row(["T longer", "12", "3 s"]), "T longer      3 s\n");
        let upright = table.growing(Some(10));
        assert_eq!(upright.head(), "");
        assert_eq!(upright.row(["T", "12", "3 s"]), "case    T\nblocks  12\ntime    3 s\n\n");
    }
}
