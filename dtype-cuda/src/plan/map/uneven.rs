//! Units and shifts straight from a table of blocks: a loop for shifts that is vectorised, then one that
//! sets a bit for each block.

use gapless_dtype::RunTable;

use super::{Scale, Shift, State, UNIT, UnitBytes, unit_bytes};

impl State {
    /// Writes units and shifts until there is no more room for either; whether that was all. The table has
    /// as many blocks as the plan. Of the state, `word` and `rest` are not used: the table knows.
    pub(super) fn tabled<const N: usize>(
        &mut self,
        scale: Scale,
        table: RunTable<'_>,
        units: &mut [UnitBytes],
        shifts: &mut [[u8; N]],
    ) -> bool
    where
        [u8; N]: Shift,
    {
        let RunTable { displacement, displacements, starts } = table;
        let word_of = |start: u64| start >> scale.log2;
        // Blocks whose shifts there is room for, and that begin in units there is room for.
        let all = displacements.len();
        let from = index(self.blocks);
        let room = all.min(from + shifts.len());
        let limit = self.units + units.len() as u64;
        let to = from + before(&starts[from..room], |start| word_of(start) / UNIT < limit);
        let (begun, end) = (&starts[from..to], word_of(starts[to]));

        let scale = Scale { base: scale.base.wrapping_sub(displacement), ..scale };
        for ((shift, &start), &at) in shifts.iter_mut().zip(begun).zip(&displacements[from..to]) {
            *shift = Shift::of(scale.shift(at, word_of(start)));
        }

        let mut state = *self;
        let mut page = Page { units, first: self.units };
        let mut block = u32::try_from(from).expect("plans have at most 2³² blocks");
        for &start in begun {
            let word = word_of(start);
            if word / UNIT != state.units {
                state.turn(&mut page, word / UNIT, block, !word.is_multiple_of(UNIT));
            }
            state.begins |= 1 << (word % UNIT);
            block = block.wrapping_add(1);
        }
        let complete = limit.min(end / UNIT);
        if complete > state.units {
            state.turn(&mut page, complete, block, end > complete * UNIT);
        }
        state.blocks = to as u64;
        let mut finished = to == all && complete == end / UNIT;
        if finished && !end.is_multiple_of(UNIT) {
            match page.units.get_mut(index(state.units - page.first)) {
                Some(last) => *last = state.close(),
                None => finished = false,
            }
        }
        *self = state;
        finished
    }

    /// Writes the open unit and those behind it that the block before `block` fills; opens unit `to`, into
    /// which that block `reaches` or not.
    fn turn(&mut self, page: &mut Page<'_>, to: u64, block: u32, reaches: bool) {
        let last = block.wrapping_sub(1);
        let ended = &mut page.units[index(self.units - page.first)..index(to - page.first)];
        if let [open, inside @ ..] = ended {
            *open = unit_bytes(self.open, self.begins);
            inside.fill(unit_bytes(last, 0));
        }
        self.units = to;
        self.open = if reaches { last } else { block };
        self.begins = 0;
    }
}

/// Room for units from a number on.
struct Page<'a> {
    units: &'a mut [UnitBytes],
    first: u64,
}

/// How many of the first `starts`, which ascend, are so.
fn before(starts: &[u64], so: impl Fn(u64) -> bool) -> usize {
    match starts.last() {
        // Mostly there is room for all.
        Some(&last) if !so(last) => starts.partition_point(|&start| so(start)),
        _ => starts.len(),
    }
}

/// A number below the length of what is in memory.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("no longer than a table or a page in memory")
}
