//! What is packed on a GPU: committed layouts with what is known of them, and the same with one block
//! perturbed, so that no closed form fits and the general path runs.
//!
//! Pure: nothing here touches a device. Units: bytes; sizes named `n` are the layouts' own.

use gapless_dtype::{Convertor, Datatype, Layout, Order, Primitive, Run};
use gapless_layouts::{Case, Side, papers};

use super::floor::Traffic;
use crate::error::Failure;
use crate::random::Random;

const DOUBLE: u64 = 8;
/// Displacement 0 lies at a multiple of this in its place.
const ALIGNMENT: u64 = 256;
/// Blocks of a list that describes a perturbed regular layout.
pub const PERTURBED_BLOCKS_MAX: u64 = 1 << 23;

/// A layout to be packed and unpacked.
#[derive(Clone)]
pub struct Subject {
    /// What a table shows; unique in a report.
    pub name: String,
    /// Committed.
    pub layout: Layout,
    /// Instances.
    pub count: u64,
    /// Where displacement 0 is in a place.
    pub origin: u64,
    /// Bytes of a place.
    pub span: u64,
    /// Bytes of the packed stream.
    pub payload: u64,
    /// Maximal contiguous runs.
    pub blocks: u64,
    /// What its side with gaps costs memory.
    pub traffic: Traffic,
    /// Seconds that committing took.
    pub commit_seconds: f64,
}

impl Subject {
    /// `count` instances of a datatype.
    ///
    /// # Errors
    /// One that does not commit, or overflows.
    pub fn new(
        name: impl Into<String>,
        datatype: &Datatype,
        count: u64,
    ) -> Result<Subject, Failure> {
        let begin = std::time::Instant::now();
        let layout = datatype.commit()?;
        let commit_seconds = begin.elapsed().as_secs_f64();
        let convertor = Convertor::new(&layout, count)?;
        let (low, high) = convertor.bounds().unwrap_or((0, 0));
        let origin = low.min(0).unsigned_abs().next_multiple_of(ALIGNMENT);
        let reach = high.max(0).unsigned_abs();
        Ok(Subject {
            name: name.into(),
            span: origin + reach,
            origin,
            payload: convertor.packed_size(),
            blocks: layout.blocks_of(count).unwrap_or(u64::MAX),
            traffic: Traffic::of_layout(&layout, count)?,
            layout,
            count,
            commit_seconds,
        })
    }

    /// One side of a case of the catalogue.
    ///
    /// # Errors
    /// As [`new`](Subject::new).
    pub fn of(name: impl Into<String>, side: &Side) -> Result<Subject, Failure> {
        Subject::new(name, &side.datatype, side.count)
    }

    /// Bytes without gaps.
    ///
    /// # Errors
    /// None that can happen.
    pub fn contiguous(bytes: u64) -> Result<Subject, Failure> {
        Subject::new(format!("contiguous bytes={bytes}"), &Primitive::Byte.into(), bytes)
    }

    /// Its runs in packed order.
    ///
    /// # Errors
    /// None for a subject that was made.
    pub fn runs(&self) -> Result<Vec<Run>, Failure> {
        let mut convertor = Convertor::new(&self.layout, self.count)?;
        let mut all = Vec::with_capacity(usize::try_from(self.blocks).unwrap_or(0).min(1 << 26));
        let mut runs = [Run::default(); 256];
        loop {
            let (used, _) = convertor.iov(&mut runs, u64::MAX);
            if used == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&runs[..used]);
        }
    }

    /// Whether some byte of memory comes more than once: what is unpacked there depends on the order,
    /// which nobody promises, unless all of it has one value. Asked of up to 2²¹ blocks; no larger subject
    /// overlaps.
    ///
    /// # Errors
    /// As for [`runs`](Subject::runs).
    pub fn overlaps(&self) -> Result<bool, Failure> {
        if self.blocks > 1 << 21 {
            return Ok(false);
        }
        let mut runs = self.runs()?;
        runs.sort_unstable_by_key(|run| run.displacement);
        Ok(runs.windows(2).any(|pair| pair[0].end() > pair[1].displacement))
    }
}

fn double() -> Datatype {
    Primitive::Double.into()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("sizes here are far below 2^63")
}

/// V of the papers.
///
/// # Errors
/// A size that is none.
pub fn v(n: u64) -> Result<Subject, Failure> {
    sent(papers::v(n)?)
}

/// T of the papers.
///
/// # Errors
/// A size that is none.
pub fn t(n: u64) -> Result<Subject, Failure> {
    sent(papers::t(n)?)
}

/// The stair triangle, steps of 256 columns.
///
/// # Errors
/// A size that is no multiple of 256.
pub fn stair(n: u64) -> Result<Subject, Failure> {
    sent(papers::stair(n, 256)?)
}

/// X of the papers, or of a matrix that is not square.
///
/// # Errors
/// A size that is none.
pub fn x(rows: u64, columns: u64) -> Result<Subject, Failure> {
    if rows == columns { sent(papers::x(rows)?) } else { sent(papers::x_rectangle(rows, columns)?) }
}

fn sent(case: Case) -> Result<Subject, Failure> {
    Subject::of(case.name, &case.send)
}

/// V whose middle column is an element longer.
///
/// # Errors
/// A size that is none.
pub fn v_perturbed(n: u64) -> Result<Subject, Failure> {
    let lengths = (0..n).map(|column| n + u64::from(column == n / 2)).collect::<Vec<_>>();
    let starts = (0..n).map(|column| signed(2 * n * column)).collect::<Vec<_>>();
    let datatype = Datatype::indexed(&lengths, &starts, &double())?;
    Subject::new(format!("V perturbed n={n}"), &datatype, 1)
}

/// T whose middle column is an element longer.
///
/// # Errors
/// A size that is none.
pub fn t_perturbed(n: u64) -> Result<Subject, Failure> {
    let middle = |column| u64::from(column == n / 2);
    let lengths = (0..n).map(|column| n - column + middle(column)).collect::<Vec<_>>();
    let starts = (0..n).map(|column| signed(column * (n + 1) - middle(column))).collect::<Vec<_>>();
    let datatype = Datatype::indexed(&lengths, &starts, &double())?;
    Subject::new(format!("T perturbed n={n}"), &datatype, 1)
}

/// X in which two elements have changed places.
///
/// # Errors
/// A size that is none.
pub fn x_perturbed(n: u64) -> Result<Subject, Failure> {
    let mut starts: Vec<i64> =
        (0..n).flat_map(|row| (0..n).map(move |column| signed(column * n + row))).collect();
    let middle = starts.len() / 2;
    starts.swap(middle, middle / 2);
    let datatype = Datatype::indexed_block(1, &starts, &double())?;
    Subject::new(format!("X perturbed n={n}"), &datatype, 1)
}

/// Blocks of `len` bytes, `stride` bytes apart, about `payload` bytes of them; lengths and strides are
/// multiples of 4.
///
/// # Errors
/// None that can happen.
pub fn blocks(len: u64, stride: u64, payload: u64) -> Result<Subject, Failure> {
    let (count, words) = (payload / len, len / 4);
    let float = Primitive::Float.into();
    let datatype = Datatype::vector(count, words, signed(stride / 4), &float)?;
    Subject::new(format!("blocks {len}@{stride}"), &datatype, 1)
}

/// The same with one block a word longer, and of at most [`PERTURBED_BLOCKS_MAX`] blocks.
///
/// # Errors
/// None that can happen.
pub fn blocks_perturbed(len: u64, stride: u64, payload: u64) -> Result<Subject, Failure> {
    let count = (payload / len).min(PERTURBED_BLOCKS_MAX);
    let lengths: Vec<u64> = (0..count).map(|at| len / 4 + u64::from(at == count / 2)).collect();
    let starts: Vec<i64> = (0..count).map(|at| signed(at * stride / 4)).collect();
    let datatype = Datatype::indexed(&lengths, &starts, &Primitive::Float.into())?;
    Subject::new(format!("blocks perturbed {len}@{stride}"), &datatype, 1)
}

/// A list as a user's arrays have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Three doubles each.
    Triples,
    /// One to three doubles each.
    OneToThree,
    /// Single floats.
    Floats,
}

impl Listed {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Listed::Triples => "list 3 doubles",
            Listed::OneToThree => "list 1 to 3 doubles",
            Listed::Floats => "list 1 float",
        }
    }
}

/// `blocks` blocks with gaps about as long as they are, ascending or shuffled.
///
/// # Errors
/// More blocks than a datatype holds.
pub fn list(kind: Listed, blocks: u64, shuffled: bool) -> Result<Subject, Failure> {
    let mut random = Random::new(blocks);
    let mut next = 0;
    let mut list: Vec<(i64, u64)> = (0..blocks)
        .map(|at| {
            let (len, gap) = match kind {
                Listed::Triples => (3, 1 + random.below(4)),
                Listed::OneToThree => (1 + at % 3, 1 + random.below(3)),
                Listed::Floats => (1, 1 + random.below(2)),
            };
            let here = next;
            next += len + gap;
            (signed(here), len)
        })
        .collect();
    if shuffled {
        random.shuffle(&mut list);
    }
    let (starts, lengths): (Vec<i64>, Vec<u64>) = list.into_iter().unzip();
    let datatype = match kind {
        Listed::Triples => Datatype::indexed_block(3, &starts, &double())?,
        Listed::OneToThree => Datatype::indexed(&lengths, &starts, &double())?,
        Listed::Floats => Datatype::indexed_block(1, &starts, &Primitive::Float.into())?,
    };
    let order = if shuffled { " shuffled" } else { "" };
    Subject::new(format!("{}{order} blocks={blocks}", kind.name()), &datatype, 1)
}

/// The boxes that a cube of `edge`³ owned cells sends to its 26 neighbours, one subject each, in the
/// order of `halo26` of the catalogue.
///
/// # Errors
/// A depth that is none.
pub fn halo_boxes(edge: u64, depth: u64) -> Result<Vec<Subject>, Failure> {
    let width = edge + 2 * depth;
    let (sizes, starts) = ([depth, edge, depth], [depth, depth, edge]);
    let directions = (0..27usize).filter(|&at| at != 13).map(|at| [at / 9, at / 3 % 3, at % 3]);
    directions
        .map(|direction| {
            let [subsizes, begins] = [sizes, starts].map(|list| direction.map(|d| list[d]));
            let datatype =
                Datatype::subarray(&[width; 3], &subsizes, &begins, Order::C, &double())?;
            let [z, y, x] = direction.map(|d| signed(d as u64) - 1);
            Subject::new(format!("box {x},{y},{z} n={edge} h={depth}"), &datatype, 1)
        })
        .collect()
}

/// Wu's vector for comparison with `cudaMemcpy2D`: blocks of `len` bytes at twice that, `len` a multiple
/// of 8.
///
/// # Errors
/// None that can happen.
pub fn rows(count: u64, len: u64) -> Result<Subject, Failure> {
    let doubles = len / DOUBLE;
    let datatype = Datatype::vector(count, doubles, signed(2 * doubles), &double())?;
    Subject::new(format!("{count} blocks len={len}"), &datatype, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Shape;

    fn general(subject: &Subject) -> bool {
        matches!(subject.layout.shape(), Shape::General | Shape::EqualBlocks { .. })
    }

    #[test]
    fn perturbed_layouts_have_no_closed_form_and_hardly_another_size() {
        for (plain, perturbed) in [
            (v(16).unwrap(), v_perturbed(16).unwrap()),
            (t(16).unwrap(), t_perturbed(16).unwrap()),
            (x(16, 16).unwrap(), x_perturbed(16).unwrap()),
            (blocks(12, 24, 1200).unwrap(), blocks_perturbed(12, 24, 1200).unwrap()),
            (blocks(4, 12, 400).unwrap(), blocks_perturbed(4, 12, 400).unwrap()),
        ] {
            assert!(!general(&plain), "{}", plain.name);
            assert!(general(&perturbed), "{}", perturbed.name);
            assert!(perturbed.payload - plain.payload <= 8, "{}", plain.name);
            assert!(perturbed.span <= plain.span + 8);
            assert_eq!(perturbed.blocks, plain.blocks, "{}", plain.name);
        }
    }

    /// Perturbed or not, nothing is unpacked to twice.
    #[test]
    fn no_byte_is_there_twice() {
        let mut all =
            vec![v_perturbed(9).unwrap(), t_perturbed(9).unwrap(), x_perturbed(9).unwrap()];
        all.extend([blocks_perturbed(8, 16, 800).unwrap(), stair(512).unwrap()]);
        all.extend(
            [Listed::Triples, Listed::OneToThree, Listed::Floats]
                .into_iter()
                .flat_map(|kind| [false, true].map(|shuffled| list(kind, 1000, shuffled).unwrap())),
        );
        all.push(rows(10, 96).unwrap());
        for subject in all {
            let mut runs = subject.runs().unwrap();
            assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), subject.payload);
            runs.sort_by_key(|run| run.displacement);
            assert!(runs.windows(2).all(|two| two[0].end() <= two[1].displacement));
            let end = runs.last().unwrap().end().cast_unsigned();
            assert_eq!(subject.origin + end, subject.span, "{}", subject.name);
        }
    }

    #[test]
    fn the_boxes_are_the_catalogues_halo() {
        let whole = gapless_layouts::cube::halo26(8, 2).unwrap();
        // What is sent shares its corners between neighbours, what is received does not.
        assert!(Subject::of("halo", &whole.send).unwrap().overlaps().unwrap());
        assert!(!Subject::of("halo", &whole.recv).unwrap().overlaps().unwrap());
        let boxes = halo_boxes(8, 2).unwrap();
        assert_eq!(boxes.len(), 26);
        let payload: u64 = boxes.iter().map(|one| one.payload).sum();
        assert_eq!(payload, whole.payload_bytes);
        let joined: Vec<Run> = boxes.iter().flat_map(|one| one.runs().unwrap()).collect();
        assert_eq!(joined, Subject::of("halo", &whole.send).unwrap().runs().unwrap());
    }

    #[test]
    fn negative_displacements_have_room_before_the_origin() {
        let datatype = Datatype::resized(0, -16, &double()).unwrap();
        let subject = Subject::new("backwards", &datatype, 5).unwrap();
        assert_eq!((subject.origin, subject.span, subject.payload), (256, 264, 40));
    }
}
