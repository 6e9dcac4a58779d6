//! Runs cases on a device and compares every byte of both sides with a byte-by-byte reference. Gaps and
//! surroundings are canaries: what should not be touched is looked at as well.

use crate::bench::Bench;
use crate::cases::{Case, MARGIN, Random, place, strided_case};
use crate::shapes;
use gapless_kernels::args::{Args, HALF};
use gapless_kernels::launch::Budget;
use gapless_kernels::launch::{
    self, Blocks, Grid, GridDim, Launch, Launches, Move, MovePart, Planned, TransferSide, fused,
    transfer,
};
use gapless_kernels::{Direction, Family, Kernel, Width};
use std::collections::BTreeSet;
use std::ops::Range;

impl Bench {
    /// Runs a case and compares every byte of both sides. `skew` shifts the packed side against the
    /// stream's words.
    #[expect(clippy::too_many_arguments, reason = "what a test varies")]
    fn pack_or_unpack(
        &mut self,
        case: &Case,
        direction: Direction,
        range: Range<u64>,
        budget: Option<Budget>,
        skew: u64,
        width: Width,
        seed: u64,
    ) -> Vec<Kernel> {
        let len = range.end - range.start;
        let packed_at = MARGIN + range.start % 16 + skew;
        let what = Move {
            direction,
            range: range.clone(),
            typed: place(case.origin()),
            packed: place(packed_at.cast_signed()),
            budget,
        };
        let mut launches = case.launches(&what);
        let origin = case.origin();
        let inside_word = len < 16;
        if skew == 0 && !inside_word {
            for launch in &launches {
                assert_eq!(launch.kernel.width, width, "seed {seed:#x}: {launch:?}");
            }
        }
        let mut random = Random::new(seed ^ 0x5555);
        if random.below(2) == 0 {
            launches.iter_mut().for_each(as_if_large);
        }
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (mut typed, mut packed) = (noise(case.buffer_bytes()), noise(len + 3 * MARGIN));
        let pointers = [self.upload(&typed), self.upload(&packed), self.upload(&case.plan)];
        let used = self.run(&launches, &pointers);
        for (at, byte) in (packed_at..).zip(range.clone()) {
            let at = usize::try_from(at).unwrap();
            let displacement = case.truth[usize::try_from(byte).unwrap()];
            let there = usize::try_from(origin + displacement).unwrap();
            match direction {
                Direction::Pack => packed[at] = typed[there],
                Direction::Unpack => typed[there] = packed[at],
            }
        }
        let say = format!("seed {seed:#x}, {range:?}, {direction:?}, skew {skew}, by {launches:?}");
        same(&self.take(pointers[0]), &typed, &format!("typed side, {say}"));
        same(&self.take(pointers[1]), &packed, &format!("packed side, {say}"));
        self.take(pointers[2]);
        used
    }

    /// Runs a part of every case, all at once, and compares every byte of both sides. Cases of one width
    /// must run at it.
    fn fused(
        &mut self,
        cases: &[Case],
        direction: Direction,
        budget: Option<Budget>,
        width: Option<Width>,
        random: &mut Random,
        round: u64,
    ) -> Vec<Kernel> {
        let (mut plan, mut parts) = (Vec::new(), Vec::new());
        let (mut typed_len, mut packed_len) = (0, MARGIN);
        for case in cases {
            let plan_at = plan.len() as u64;
            plan.extend_from_slice(&case.plan);
            plan.resize(plan.len().next_multiple_of(16), 0);
            let side = match case.side.clone() {
                TransferSide::Listed(blocks) => {
                    TransferSide::Listed(Blocks { list: blocks.list + plan_at, ..blocks })
                }
                TransferSide::Mapped(planned) => TransferSide::Mapped(Planned {
                    units: planned.units + plan_at,
                    shifts: planned.shifts + plan_at,
                    ..planned
                }),
                other => other,
            };
            // Some are a few bytes, which may lie inside a word.
            let whole = random.below(3) == 0;
            let mut range = case.range(random, whole);
            if random.below(4) == 0 {
                range.end = range.end.min(range.start + random.between(1, 20));
            }
            let packed_at = packed_len.next_multiple_of(16) + range.start % 16;
            parts.push(MovePart {
                range: range.clone(),
                side,
                typed: place(typed_len + case.origin()),
                packed: place(packed_at.cast_signed()),
            });
            typed_len += case.buffer_bytes().next_multiple_of(16).cast_signed();
            packed_len = packed_at + (range.end - range.start) + random.below(2) * MARGIN;
        }
        let launches = fused(direction, &parts, budget).unwrap();
        assert!(launches.iter().all(|launch| launch.kernel.family == Family::Fused));
        if let Some(width) = width {
            assert!(launches.iter().all(|launch| launch.kernel.width == width), "{launches:?}");
            assert_eq!(launches.len(), cases.len().div_ceil(32));
        }
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (mut typed, mut packed) =
            (noise(typed_len.cast_unsigned()), noise(packed_len + MARGIN));
        let pointers = [self.upload(&typed), self.upload(&packed), self.upload(&plan)];
        let used = self.run(&launches, &pointers);
        for (case, part) in cases.iter().zip(&parts) {
            for (at, byte) in (part.packed.offset..).zip(part.range.clone()) {
                let at = usize::try_from(at).unwrap();
                let displacement = case.truth[usize::try_from(byte).unwrap()];
                let there = usize::try_from(part.typed.offset + displacement).unwrap();
                match direction {
                    Direction::Pack => packed[at] = typed[there],
                    Direction::Unpack => typed[there] = packed[at],
                }
            }
        }
        let say = format!("round {round}, {direction:?}: {parts:?}");
        same(&self.take(pointers[0]), &typed, &format!("typed side, {say}"));
        same(&self.take(pointers[1]), &packed, &format!("packed side, {say}"));
        self.take(pointers[2]);
        used
    }

    /// Moves from layout to layout and compares every byte of both sides.
    fn transfer(
        &mut self,
        from: &Case,
        to: &Case,
        range: Range<u64>,
        budget: Option<Budget>,
        seed: u64,
    ) -> Vec<Kernel> {
        let sides = ((&from.side, place(from.origin())), (&to.side, place(to.origin())));
        let launches = transfer(&range, sides.0, sides.1, budget).unwrap();
        assert!(launches.iter().all(|launch| launch.kernel.family == Family::Transfer));
        self.check_transfer(from, to, &range, &launches, seed)
    }

    /// Runs launches that move from layout to layout and compares every byte of both sides.
    fn check_transfer(
        &mut self,
        from: &Case,
        to: &Case,
        range: &Range<u64>,
        launches: &[Launch],
        seed: u64,
    ) -> Vec<Kernel> {
        let mut random = Random::new(seed ^ 0xaaaa);
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (source, mut target) = (noise(from.buffer_bytes()), noise(to.buffer_bytes()));
        let pointers = [
            self.upload(&source),
            self.upload(&target),
            self.upload(&from.plan),
            self.upload(&to.plan),
        ];
        // The side whose words are looked up comes first.
        let mut order = pointers;
        if launches.iter().any(|launch| launch.kernel.direction == Direction::Unpack) {
            order.swap(0, 1);
        }
        let used = self.run(launches, &order);
        let (from_origin, to_origin) = (from.origin(), to.origin());
        for byte in range.clone() {
            let byte = usize::try_from(byte).unwrap();
            let here = usize::try_from(from_origin + from.truth[byte]).unwrap();
            let there = usize::try_from(to_origin + to.truth[byte]).unwrap();
            target[there] = source[here];
        }
        let say = format!("seed {seed:#x}, {range:?}, by {launches:?}");
        same(&self.take(pointers[0]), &source, &format!("source, {say}"));
        same(&self.take(pointers[1]), &target, &format!("destination, {say}"));
        self.take(pointers[2]);
        self.take(pointers[3]);
        used
    }

    /// Moves between two memories of one layout and compares every byte of both. `skews` shift them against
    /// the case's words.
    fn same(
        &mut self,
        case: &Case,
        range: Range<u64>,
        budget: Option<Budget>,
        skews: (i64, i64),
        seed: u64,
    ) -> Vec<Kernel> {
        let (from, to) = (case.origin() + skews.0, case.origin() + skews.1);
        let mut launches =
            launch::same(&range, &case.side, place(from), place(to), budget).unwrap();
        let mut random = Random::new(seed ^ 0x3333);
        if random.below(2) == 0 {
            launches.iter_mut().for_each(as_if_large);
        }
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let len = case.buffer_bytes() + 16;
        let (source, mut target) = (noise(len), noise(len));
        let pointers = [self.upload(&source), self.upload(&target), self.upload(&case.plan)];
        let used = self.run(&launches, &pointers);
        for byte in range.clone() {
            let displacement = case.truth[usize::try_from(byte).unwrap()];
            target[usize::try_from(to + displacement).unwrap()] =
                source[usize::try_from(from + displacement).unwrap()];
        }
        let say = format!("seed {seed:#x}, {range:?}, skews {skews:?}, by {launches:?}");
        same(&self.take(pointers[0]), &source, &format!("source, {say}"));
        same(&self.take(pointers[1]), &target, &format!("destination, {say}"));
        self.take(pointers[2]);
        used
    }
}

/// Cases are small; makes a launch as if this one were not. Some tiles have nothing to do then.
fn as_if_large(launch: &mut Launch) {
    match &mut launch.args {
        Args::Strided(args) => args.span.edges &= !HALF,
        Args::Mapped(args) => args.span.edges &= !HALF,
        // As if there were more blocks in the budget, likewise, of what loops with longer strips.
        Args::Affine(args)
            if launch.kernel.few
                && matches!(launch.kernel.family, Family::Affine | Family::SameAffine)
                && (launch.kernel.direction == Direction::Unpack
                    || launch.kernel.family.is_same())
                && matches!(launch.kernel.width, Width::W2 | Width::W4 | Width::W8) =>
        {
            args.span.edges |= HALF;
            let edges = u32::from(args.span.edges & 0xffff != 0);
            args.span.tiles = args.span.words.div_ceil(launch.threads * 7) + edges;
        }
        Args::Affine(args) => args.span.edges &= !HALF,
        // As if there were more blocks in the budget.
        Args::Copy(args) if launch.kernel.few && launch.kernel.width != Width::W1 => {
            args.span.edges |= HALF;
            let edges = u32::from(args.span.edges & 0xffff != 0);
            let words = launch.threads * launch.kernel.width.items();
            args.span.tiles = args.span.words.div_ceil(words) + edges;
        }
        // As if the source lay elsewhere.
        Args::Transposed(_) | Args::Listed(_) => {
            let mut launches = Launches::from_iter([launch.clone()]);
            launch::from_afar(&mut launches, None);
            *launch = launches.remove(0);
        }
        _ => {}
    }
}

/// Says where two buffers differ first.
pub(crate) fn same(got: &[u8], want: &[u8], what: &str) {
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
        panic!("{wrong} of {} bytes differ, first byte {at}: {what}", got.len());
    }
}

/// Cases of each family, width and direction.
const ROUNDS: u64 = 6;

/// Whether a family has a packed side and one typed one; others have tests of their own.
fn one_sided(family: Family) -> bool {
    !matches!(family, Family::Transfer | Family::Pages | Family::Fused) && !family.is_same()
}

pub(crate) fn every_kernel_moves_every_byte_to_its_place(bench: &mut Bench) {
    let mut ran = BTreeSet::new();
    for width in Width::ALL {
        for family in Family::ALL.into_iter().filter(|&family| one_sided(family)) {
            for round in 0..ROUNDS {
                let seed = (round << 16) | (family as u64) << 8 | width as u64;
                let mut random = Random::new(seed);
                let case = shapes::case(family, width, &mut random);
                for direction in [Direction::Pack, Direction::Unpack] {
                    let range = case.range(&mut random, round % 3 == 0);
                    let budget = if round % 2 == 1 { Budget::new(1) } else { None };
                    let skew = if round == 2 { random.below(16) } else { 0 };
                    let used =
                        bench.pack_or_unpack(&case, direction, range, budget, skew, width, seed);
                    ran.extend(used.iter().map(Kernel::to_string));
                }
            }
        }
    }
    for kernel in Kernel::all().filter(|kernel| one_sided(kernel.family)) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}

pub(crate) fn layouts_move_into_layouts(bench: &mut Bench) {
    let sides = [
        Family::Copy,
        Family::Strided,
        Family::Strided1,
        Family::Affine,
        Family::Listed,
        Family::Mapped,
        Family::Transposed,
    ];
    let mut ran = BTreeSet::new();
    for (number, from) in (0u64..).zip(sides) {
        for (other, to) in (0u64..).zip(sides) {
            let width = Width::ALL[usize::try_from((number + other) % 5).unwrap()];
            let seed = 1 << 32 | number << 8 | other;
            let mut random = Random::new(seed);
            let source = shapes::case(from, width, &mut random);
            let target = shapes::case(to, width, &mut random);
            let size = source.size().min(target.size());
            let (a, b) = (random.below(size), random.below(size));
            let part = a.min(b)..a.max(b) + 1;
            for (range, budget) in [(0..size, None), (part, None), (0..size, Budget::new(1))] {
                let used = bench.transfer(&source, &target, range, budget, seed);
                ran.extend(used.iter().map(Kernel::to_string));
            }
        }
    }
    for width in Width::ALL {
        for few in [false, true] {
            let (family, direction) = (Family::Transfer, Direction::Pack);
            let kernel = Kernel { family, direction, width, few };
            assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
        }
    }
}

/// Of two grids with the same loops one side runs along its memory where the other runs across.
pub(crate) fn rows_move_into_columns(bench: &mut Bench) {
    let mut ran = BTreeSet::new();
    for width in Width::ALL {
        for round in 0..2 * ROUNDS {
            let seed = 1 << 44 | (round << 8) | width as u64;
            let mut random = Random::new(seed);
            let word = i64::from(width.bytes());
            // Several squares, where blocks are to loop.
            let least = if round % 4 >= 2 { 33 } else { 8 };
            let (rows, columns) = (random.between(least, 80), random.between(least, 80));
            let pitch =
                |count: u64, random: &mut Random| (count + random.below(5)).cast_signed() * word;
            let grid = |displacement, strides: [i64; 3]| {
                let dims = [planes(round), rows, columns].into_iter().zip(strides);
                let dims = dims.map(|(count, stride)| GridDim { count, stride }).collect();
                strided_case(Grid {
                    displacement: displacement * word,
                    len: word.cast_unsigned(),
                    dims,
                })
            };
            let (row, column) = (pitch(columns, &mut random), pitch(rows, &mut random));
            let by_rows = grid(3, [row * 90, row, word]);
            // Both sides in single words, or only the one that is walked along.
            let near = if round % 3 == 2 && 2 * word <= 32 { 2 * word } else { word };
            let by_columns = grid(5, [column * 200, near, 2 * column]);
            let (from, to) =
                if round % 2 == 0 { (by_rows, by_columns) } else { (by_columns, by_rows) };
            let sides = [&from, &to].map(|case| match &case.side {
                TransferSide::Strided(grid) => (grid, place(case.origin())),
                other => panic!("{other:?}"),
            });
            let budget = if round % 4 >= 2 { Budget::new(2) } else { None };
            let mut launches = launch::crossed(sides[0], sides[1], budget).unwrap();
            assert!(launches.iter().all(|launch| launch.kernel.width == width));
            if round >= ROUNDS {
                launch::from_afar(&mut launches, budget);
            }
            let used = bench.check_transfer(&from, &to, &(0..from.size()), &launches, seed);
            ran.extend(used.iter().map(Kernel::to_string));
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Transposed) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}

/// Planes of a round.
fn planes(round: u64) -> u64 {
    1 + round / 3 % 2
}

pub(crate) fn equal_layouts_move_into_each_other(bench: &mut Bench) {
    let mut ran = BTreeSet::new();
    for width in Width::ALL {
        let same = Family::ALL.into_iter().filter(|family| family.is_same());
        for family in same.chain([Family::Copy, Family::Transposed]) {
            for round in 0..2 * ROUNDS {
                let seed = 1 << 40 | (round << 16) | (family as u64) << 8 | width as u64;
                let mut random = Random::new(seed);
                let case = shapes::case(family, width, &mut random);
                let range = case.range(&mut random, round % 3 == 0);
                let budget = if round % 2 == 1 { Budget::new(1) } else { None };
                let mut skew = || if round % 3 == 2 { random.below(16).cast_signed() } else { 0 };
                let skews = (skew(), skew());
                let used = bench.same(&case, range, budget, skews, seed);
                ran.extend(used.iter().map(Kernel::to_string));
            }
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family.is_same()) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
    // Few bytes, inside a word or across two.
    let mut random = Random::new(98);
    let case = shapes::case(Family::Strided1, Width::W8, &mut random);
    for range in [0..0, 3..4, 3..8, 8..9, 5..12, 1..case.size() - 1] {
        bench.same(&case, range, None, (0, 0), 98);
    }
}

pub(crate) fn many_requests_move_at_once(bench: &mut Bench) {
    let sides: Vec<Family> = Family::ALL.into_iter().filter(|&family| one_sided(family)).collect();
    let mut ran = BTreeSet::new();
    for round in 0u64..30 {
        let mut random = Random::new(5 << 32 | round);
        let width = Width::ALL[usize::try_from(round % 5).unwrap()];
        // Words of one width, or of any; up to more requests than a launch takes.
        let mixed = round >= 20;
        let count = random.between(1, if round % 4 == 3 { 40 } else { 9 });
        let cases: Vec<Case> = (0..count)
            .map(|_| {
                let family = sides[usize::try_from(random.below(sides.len() as u64)).unwrap()];
                let width = if mixed {
                    Width::ALL[usize::try_from(random.below(5)).unwrap()]
                } else {
                    width
                };
                shapes::case(family, width, &mut random)
            })
            .collect();
        let budget = if round % 2 == 1 { Budget::new(1) } else { None };
        for direction in [Direction::Pack, Direction::Unpack] {
            let width = (!mixed).then_some(width);
            let used = bench.fused(&cases, direction, budget, width, &mut random, round);
            ran.extend(used.iter().map(Kernel::to_string));
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Fused) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}

/// Both ends of a box's lines, in one launch: the same threads move both.
pub(crate) fn twins_move_as_if_they_were_alone(bench: &mut Bench) {
    for width in Width::ALL {
        let word = u64::from(width.bytes());
        for (round, after) in [(0, false), (1, true)] {
            let mut random = Random::new(7 << 32 | round << 8 | width as u64);
            let (len, lines) = (random.between(1, 3), random.between(300, 900));
            let line = (2 * random.between(5, 9) + 1) * word;
            let end = (line - len * word).cast_signed();
            let dim = |count, stride: u64| GridDim { count, stride: stride.cast_signed() };
            let dims = [dim(3, (lines + 1) * line), dim(lines, line)];
            let at = |displacement| Grid { displacement, len: len * word, dims: dims[..].into() };
            // Between the two, and after them, is something else.
            let middle =
                Grid { displacement: 4 * word.cast_signed(), len: word, dims: dims[..].into() };
            let mut sides = vec![at(0), middle, at(end)];
            if after {
                sides.swap(1, 2);
            }
            let cases: Vec<Case> = sides.into_iter().map(strided_case).collect();
            let typed_len = 3 * (lines + 1) * line + MARGIN;
            let mut packed_len = 0u64;
            let parts: Vec<MovePart> = (cases.iter())
                .map(|case| {
                    let range = 0..case.size();
                    let packed = place(packed_len.cast_signed());
                    packed_len += case.size().next_multiple_of(16);
                    MovePart { range, side: case.side.clone(), typed: place(0), packed }
                })
                .collect();
            for (direction, budget) in [Direction::Pack, Direction::Unpack]
                .into_iter()
                .flat_map(|direction| [(direction, None), (direction, Budget::new(3))])
            {
                let launches = fused(direction, &parts, budget).unwrap();
                let pairs = launches.iter().map(|launch| launch.args.span().first.count_ones());
                assert_eq!(pairs.sum::<u32>(), 1, "{launches:?}");
                let mut noise = |len: u64| -> Vec<u8> {
                    (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
                };
                let (mut typed, mut packed) = (noise(typed_len), noise(packed_len));
                let pointers = [bench.upload(&typed), bench.upload(&packed), bench.upload(&[0; 8])];
                bench.run(&launches, &pointers);
                for (case, part) in cases.iter().zip(&parts) {
                    for (at, there) in (part.packed.offset..).zip(&case.truth) {
                        let at = usize::try_from(at).unwrap();
                        let there = usize::try_from(*there).unwrap();
                        match direction {
                            Direction::Pack => packed[at] = typed[there],
                            Direction::Unpack => typed[there] = packed[at],
                        }
                    }
                }
                let say = format!("{width:?}, {direction:?}, {budget:?}, by {launches:?}");
                same(&bench.take(pointers[0]), &typed, &format!("typed side, {say}"));
                same(&bench.take(pointers[1]), &packed, &format!("packed side, {say}"));
                bench.take(pointers[2]);
            }
        }
    }
}

pub(crate) fn a_range_may_lie_inside_a_word(bench: &mut Bench) {
    let mut random = Random::new(99);
    let case: Case = shapes::case(Family::Strided1, Width::W8, &mut random);
    for range in [0..0, 3..4, 3..8, 8..9, 5..12, 1..case.size() - 1] {
        for direction in [Direction::Pack, Direction::Unpack] {
            bench.pack_or_unpack(&case, direction, range.clone(), None, 0, Width::W8, 99);
        }
    }
    let whole = transfer(
        &(0..0),
        (&TransferSide::Contiguous(0), place(0)),
        (&TransferSide::Contiguous(0), place(0)),
        None,
    );
    assert!(whole.unwrap().is_empty());
}
