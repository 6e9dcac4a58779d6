//! A Fourier transform in three dimensions, of a cube that is cut among processes.
//!
//! - Each process has some planes. It transforms them along their two dimensions, exchanges parts with all others so that
//!   it has whole lines along the third dimension, and transforms these. The inverse goes the same way back.
//! - The exchange is one `alltoallw`, out of the cube's layout into the cube's layout: nothing is packed by the program
//!   ([`transpose`]). In host memory it is a collective of the communicator, on GPUs one kernel a process, queued on a
//!   CUDA stream.
//! - The transform along a line is a simple one of the host, for powers of two ([`mod@line`]). On GPUs the exchange happens
//!   there, and the lines are transformed by the host all the same: what this shows is the exchange.
//!
//! Results are compared, bit by bit, with those of one process, and the inverse with what there was at first.
#![deny(unsafe_code)]

pub mod line;
#[allow(unsafe_code, reason = "queues collectives on memory that it owns")]
pub mod transpose;

use gapless::World;
use line::{Direction, fft};
use num_complex::Complex64;
use transpose::Transpose;

/// Where the exchange happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransposeMemory {
    /// In memory of the host.
    Host,
    /// In memory of a CUDA device, on a stream.
    Cuda(u32),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Planes of this process.
    pub planes: usize,
    /// Bytes that it gave to others, there and back.
    pub sent_bytes: u64,
    /// Elements of the transform that differ from those of one process, in any bit.
    pub wrong: usize,
    /// Seconds that the exchanges took, there and back, without what brings numbers to a device and from it.
    pub exchange_s: [f64; 2],
    /// The largest difference between what there was at first and what the inverse gave.
    pub error: f64,
}

/// Transforms a cube of `side`³ numbers and back, on all processes of a world.
///
/// # Errors
/// The side is no power of two, or no multiple of the processes; a process is lost; there is no such device.
pub fn run(
    world: &World,
    side: usize,
    memory: TransposeMemory,
) -> Result<Summary, Box<dyn std::error::Error>> {
    let comm = world.comm();
    let (ranks, rank) = (comm.size() as usize, comm.rank() as usize);
    if !side.is_power_of_two() || !side.is_multiple_of(ranks) {
        return Err(
            format!("{side} is no power of two, or no multiple of {ranks} processes").into()
        );
    }
    let planes = side / ranks;
    let mut transpose = Transpose::new(world, side, memory)?;
    let first: Vec<Complex64> =
        (0..planes * side * side).map(|at| warmth(rank * planes * side * side + at)).collect();
    let mut cells = first.clone();
    for plane in cells.chunks_mut(side * side) {
        both(plane, side, Direction::Forward);
    }
    let mut lines = transpose.there(&cells)?;
    along_first(&mut lines, side, planes * side, Direction::Forward);
    let wrong = compare(&lines, side, rank * planes, planes);
    along_first(&mut lines, side, planes * side, Direction::Back);
    let mut cells = transpose.back(&lines)?;
    for plane in cells.chunks_mut(side * side) {
        both(plane, side, Direction::Back);
    }
    let scale = 1.0 / (side * side * side) as f64;
    let differences = cells.iter().zip(&first).map(|(cell, first)| (cell * scale - first).norm());
    let error = differences.fold(0.0, f64::max);
    let sent = planes * planes * side * (ranks - 1) * size_of::<Complex64>();
    Ok(Summary {
        planes,
        sent_bytes: 2 * sent as u64,
        wrong,
        exchange_s: transpose.exchange_s(),
        error,
    })
}

/// A plane, along both of its dimensions.
fn both(plane: &mut [Complex64], side: usize, direction: Direction) {
    plane.chunks_mut(side).for_each(|row| fft(row, direction));
    along_first(plane, side, side, direction);
}

/// An array of `side` rows of `width` elements, along its columns.
fn along_first(array: &mut [Complex64], side: usize, width: usize, direction: Direction) {
    let mut column = vec![Complex64::default(); side];
    for at in 0..width {
        for (row, cell) in column.iter_mut().enumerate() {
            *cell = array[row * width + at];
        }
        fft(&mut column, direction);
        for (row, cell) in column.iter().enumerate() {
            array[row * width + at] = *cell;
        }
    }
}

/// How many of these lines differ from those of one process: all of the first dimension, `rows` of the second from
/// `first` on, all of the third.
fn compare(lines: &[Complex64], side: usize, first: usize, rows: usize) -> usize {
    let mut whole: Vec<Complex64> = (0..side * side * side).map(warmth).collect();
    whole.chunks_mut(side * side).for_each(|plane| both(plane, side, Direction::Forward));
    along_first(&mut whole, side, side * side, Direction::Forward);
    let bits = |cell: &Complex64| (cell.re.to_bits(), cell.im.to_bits());
    let row = |z: usize, y: usize| {
        let here = &lines[(z * rows + y) * side..][..side];
        let there = &whole[(z * side + first + y) * side..][..side];
        here.iter().zip(there).filter(|(one, other)| bits(one) != bits(other)).count()
    };
    (0..side).map(|z| (0..rows).map(|y| row(z, y)).sum::<usize>()).sum()
}

/// What a cell holds at first.
fn warmth(at: usize) -> Complex64 {
    let part = |by: usize| u32::try_from(at * by % 97).map_or(0.0, f64::from) / 97.0 - 0.5;
    Complex64::new(part(31), part(17))
}
