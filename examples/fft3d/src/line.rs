//! The transform along a line: radix 2, in place.

use num_complex::Complex64;
use std::f64::consts::TAU;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into frequencies: exponents are negative.
    Forward,
    /// Back; without a factor.
    Back,
}

/// Transforms a line of a power of two elements.
pub fn fft(line: &mut [Complex64], direction: Direction) {
    let n = line.len();
    let bits = n.trailing_zeros();
    if n < 2 {
        return;
    }
    for at in 0..n {
        let mirrored = at.reverse_bits() >> (usize::BITS - bits);
        if at < mirrored {
            line.swap(at, mirrored);
        }
    }
    let sign = if direction == Direction::Forward { -1.0 } else { 1.0 };
    let mut half = 1;
    while half < n {
        let turn = |at: usize| Complex64::cis(sign * TAU * at as f64 / (2 * half) as f64);
        let turns: Vec<Complex64> = (0..half).map(turn).collect();
        for pair in line.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for ((low, high), turn) in low.iter_mut().zip(high).zip(&turns) {
                let turned = *high * turn;
                (*low, *high) = (*low + turned, *low - turned);
            }
        }
        half *= 2;
    }
}
