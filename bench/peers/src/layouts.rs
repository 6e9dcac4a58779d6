//! The layouts, as `layout` in `peers.c` makes them. Units: bytes.

use std::error::Error;

use gapless_dtype::{Convertor, ConvertorError, Datatype, Layout, Order, Pages, Primitive, Run};

pub(crate) const LINE: u64 = 64;

/// Edge of the cube whose x-face is sent.
const EDGE: u64 = 512;

/// Instances of a layout.
pub(crate) struct Laid {
    pub(crate) layout: Layout,
    pub(crate) count: u64,
    pub(crate) payload: u64,
    /// Bytes touched, from displacement 0 on.
    pub(crate) span: u64,
    /// Cache lines touched: what any library must move, however short the runs are.
    pub(crate) lines: u64,
    /// Bytes from a place to the next, of as many as lie in each stretch: places of faces interleave.
    pub(crate) step: u64,
    pub(crate) many: u64,
    /// Bytes from the first place of so many to the next ones' first.
    pub(crate) period: u64,
}

/// Numbers that look random; the same in both programs.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// `bytes` bytes without gaps.
pub(crate) fn contiguous(bytes: u64) -> Result<Laid, Box<dyn Error>> {
    laid(&Primitive::Byte.into(), bytes, bytes)
}

/// The layout of that name with about as many bytes; pages of a rank.
pub(crate) fn named(name: &str, bytes: u64, rank: u32) -> Result<Laid, Box<dyn Error>> {
    let double = Datatype::from(Primitive::Double);
    let doubles = bytes / 8;
    let side = doubles.isqrt();
    Ok(match name {
        "contiguous" => contiguous(bytes)?,
        "V" => {
            let n = side.cast_signed();
            laid(&Datatype::vector(side, side, 2 * n, &double)?, 1, 16 * side * side)?
        }
        "T" => {
            let n = (1..).take_while(|n| n * (n + 1) / 2 <= doubles).last().unwrap_or(1);
            let lens: Vec<u64> = (0..n).map(|j| n - j).collect();
            let at: Vec<i64> = (0..n).map(|j| (j * (n + 1)).cast_signed()).collect();
            laid(&Datatype::indexed(&lens, &at, &double)?, 1, 8 * n * n)?
        }
        "X" => {
            let column = Datatype::vector(side, 1, side.cast_signed(), &double)?;
            let narrow = Datatype::resized(0, 8, &column)?;
            laid(&Datatype::contiguous(side, &narrow)?, 1, 8 * side * side)?
        }
        "struct" => {
            let kinds = [double, Primitive::Int.into()];
            let record = Datatype::structure(&[3, 1], &[0, 24], &kinds)?;
            let records = bytes / 28;
            laid(&Datatype::resized(0, 32, &record)?, records, 32 * records)?
        }
        "yface" => {
            let n = if bytes < 1 << 20 { 64 } else { 256 };
            let depth = bytes / (8 * n * n);
            let face = Datatype::subarray(&[n; 3], &[n, depth, n], &[0; 3], Order::C, &double)?;
            let span = 8 * n * n * (n - 1) + 8 * n * depth;
            // The rows behind.
            let (step, many, period) = (8 * n * depth, n / depth, 8 * n * n * n);
            Laid { step, many, period, ..laid(&face, 1, span)? }
        }
        "xface" => {
            let depth = bytes / (8 * EDGE * EDGE);
            let sub = [EDGE, EDGE, depth];
            let face = Datatype::subarray(&[EDGE; 3], &sub, &[0; 3], Order::C, &double)?;
            let span = 8 * EDGE * EDGE * EDGE - 8 * (EDGE - depth);
            let period = 8 * EDGE * EDGE * EDGE;
            Laid { step: LINE, many: 56, period, ..laid(&face, 1, span)? }
        }
        "pages" => {
            let list = PageTurns::new(bytes, rank)?;
            let width = PAGE / 8;
            let at: Vec<i64> =
                list.now().iter().map(|page| i64::from(*page) * width.cast_signed()).collect();
            laid(&Datatype::indexed_block(width, &at, &double)?, 1, 2 * PAGE * at.len() as u64)?
        }
        _ => {
            let (kind, width, shuffled) =
                list_name(name).ok_or_else(|| format!("no layout {name}"))?;
            let blocks = doubles / width;
            let (at, end) = places(blocks, width, shuffled);
            let list = match kind {
                "list" => Datatype::indexed(&vec![width; at.len()], &at, &double)?,
                _ => Datatype::indexed_block(width, &at, &double)?,
            };
            laid(&list, 1, 8 * end)?
        }
    })
}

/// Bytes of a page.
const PAGE: u64 = 8 << 10;

/// Half of the pages of a pool, in any order, other ones on each rank. Each turn's list begins with another one.
pub(crate) struct PageTurns {
    page: Layout,
    /// Twice over.
    indices: Vec<u32>,
    turns: usize,
}

impl PageTurns {
    pub(crate) fn new(bytes: u64, rank: u32) -> Result<PageTurns, Box<dyn Error>> {
        let pages = u32::try_from(bytes / PAGE)?;
        if pages == 0 {
            return Err("pages have 8 KiB".into());
        }
        let mut random = Random::new(u64::from(pages + rank));
        let mut indices: Vec<u32> = (0..2 * pages).collect();
        let half = indices.len() / 2;
        for at in 0..half {
            let left = indices.len() - at;
            indices.swap(at, at + index(random.below(left as u64)));
        }
        indices.copy_within(..half, half);
        let page = Datatype::contiguous(PAGE / 8, &Primitive::Double.into())?.commit()?;
        Ok(PageTurns { page, indices, turns: 0 })
    }

    /// The list of this turn.
    fn now(&self) -> &[u32] {
        let half = self.indices.len() / 2;
        let first = self.turns % half;
        &self.indices[first..first + half]
    }

    /// That of the next turn.
    pub(crate) fn turn(&mut self) -> Result<Pages, Box<dyn Error>> {
        self.turns += 1;
        Ok(Pages::new(&self.page, PAGE, self.now())?)
    }
}

/// `list1`, `list3`, `block1`, `block3`, with an `s` behind if shuffled.
fn list_name(name: &str) -> Option<(&str, u64, bool)> {
    let (kind, rest) = name.split_at_checked(name.find(|letter: char| letter.is_ascii_digit())?)?;
    let width = rest.trim_end_matches('s');
    matches!(kind, "list" | "block").then_some(())?;
    Some((kind, width.parse().ok().filter(|width| (1..=3).contains(width))?, rest.ends_with('s')))
}

/// Blocks with gaps of 1 to 2 widths, in doubles, and where the last gap ends.
fn places(blocks: u64, width: u64, shuffled: bool) -> (Vec<i64>, u64) {
    let mut random = Random::new(blocks ^ (width << 32));
    let mut next = 0;
    let mut at: Vec<i64> = (0..blocks)
        .map(|_| {
            let here = next;
            next += width + 1 + random.below(2 * width);
            here.cast_signed()
        })
        .collect();
    if shuffled {
        for i in (1..at.len()).rev() {
            at.swap(i, index(random.below(i as u64 + 1)));
        }
    }
    (at, next)
}

fn laid(datatype: &Datatype, count: u64, span: u64) -> Result<Laid, Box<dyn Error>> {
    let layout = datatype.commit()?;
    let payload = layout.size() * count;
    let period = span.next_multiple_of(LINE) + LINE;
    let lines = lines(&layout, count, span)?;
    Ok(Laid { layout, count, payload, span, lines, step: 0, many: 1, period })
}

/// Cache lines that the instances touch in a buffer of `span` bytes that begins one, each counted once.
fn lines(layout: &Layout, count: u64, span: u64) -> Result<u64, ConvertorError> {
    let mut touched = vec![0u64; index(span.div_ceil(LINE * 64))];
    let mut convertor = Convertor::new(layout, count)?;
    let mut runs = vec![Run::default(); 1024];
    loop {
        let (used, bytes) = convertor.iov(&mut runs, u64::MAX);
        if bytes == 0 {
            return Ok(touched.iter().map(|word| u64::from(word.count_ones())).sum());
        }
        for run in &runs[..used] {
            let first = run.displacement.cast_unsigned();
            for line in first / LINE..=(first + run.len - 1) / LINE {
                touched[index(line / 64)] |= 1 << (line % 64);
            }
        }
    }
}

pub(crate) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an arena fits the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_as_large_as_they_say() {
        let names =
            ["contiguous", "V", "T", "X", "struct", "yface", "list1", "list3", "list3s", "block1s"];
        for name in names {
            let laid = named(name, 1 << 20, 1).unwrap();
            assert!(laid.payload <= 1 << 20 && laid.payload > 1_000_000, "{name} {}", laid.payload);
            let last = (laid.count - 1).cast_signed() * laid.layout.extent();
            let end = last + laid.layout.true_ub();
            assert!(laid.layout.true_lb() == 0 && end.cast_unsigned() <= laid.span, "{name}");
        }
        let face = named("xface", 2 << 20, 0).unwrap();
        assert_eq!((face.payload, face.layout.blocks()), (2 << 20, 1 << 18));
        // Every double of the face lies in a line of its own; half the rows of a matrix fill theirs.
        assert_eq!(face.lines, 1 << 18);
        assert_eq!(named("V", 1 << 17, 0).unwrap().lines, (1 << 17) / LINE);
        assert_eq!(named("X", 1 << 17, 0).unwrap().lines, (1 << 17) / LINE);
        assert!(named("list9", 100, 0).is_err() && named("nothing", 100, 0).is_err());
    }

    #[test]
    fn each_turn_of_a_list_of_pages_has_the_same_pages() {
        let mut list = PageTurns::new(100 * PAGE, 1).unwrap();
        let sorted = |list: &PageTurns| {
            let mut pages = list.now().to_vec();
            pages.sort_unstable();
            pages
        };
        let (first, pages) = (list.now().to_vec(), sorted(&list));
        assert!(pages.windows(2).all(|pair| pair[0] < pair[1]) && pages[99] < 200);
        for _ in 1..100 {
            assert_eq!(list.turn().unwrap().packed_size(), 100 * PAGE);
            assert!(list.now() != first && sorted(&list) == pages);
        }
        assert_eq!(named("pages", 100 * PAGE, 1).unwrap().payload, 100 * PAGE);
        assert!(PageTurns::new(100, 0).is_err());
    }
}
