//! Repeated readings of one quantity, and what is kept of them.
//!
//! Medians, not means: a reading disturbed by the machine is far off on one side only. Units: seconds.

use serde::{Deserialize, Serialize};

/// No reading was usable: the list was empty, or held a value that is not a positive finite number.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoSamples {
    /// There was no reading at all.
    #[error("no samples were taken")]
    Empty,
    /// A reading was zero, negative, infinite or not a number.
    #[error("sample {index} is {seconds} s, which is no duration")]
    NotADuration {
        /// Position of the reading, in the order taken.
        index: usize,
        /// Its value, in seconds.
        seconds: f64,
    },
}

/// Readings in the order they were taken, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    seconds: Vec<f64>,
}

impl Samples {
    /// An empty list with room for `capacity` readings, so that pushing does not allocate between
    /// measurements.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { seconds: Vec::with_capacity(capacity) }
    }

    /// Readings given in seconds.
    #[must_use]
    pub fn from_seconds(seconds: impl IntoIterator<Item = f64>) -> Self {
        Self { seconds: seconds.into_iter().collect() }
    }

    /// Adds one reading, in seconds.
    pub fn push(&mut self, seconds: f64) {
        self.seconds.push(seconds);
    }

    /// The readings, in the order taken, in seconds.
    #[must_use]
    pub fn seconds(&self) -> &[f64] {
        &self.seconds
    }

    /// Median, extremes and quartiles.
    ///
    /// # Errors
    /// [`NoSamples`] when there is no reading, or one that is not positive and finite.
    pub fn summary(&self) -> Result<Summary, NoSamples> {
        if let Some((index, &seconds)) =
            self.seconds.iter().enumerate().find(|(_, s)| !(s.is_finite() && **s > 0.0))
        {
            return Err(NoSamples::NotADuration { index, seconds });
        }
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = sorted.first().zip(sorted.last()).ok_or(NoSamples::Empty)?;
        Ok(Summary {
            median: quantile(&sorted, 1, 2),
            min,
            max,
            samples: sorted.len() as u64,
            q1: Some(quantile(&sorted, 1, 4)),
            q3: Some(quantile(&sorted, 3, 4)),
        })
    }
}

impl FromIterator<std::time::Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = std::time::Duration>>(durations: I) -> Self {
        Self::from_seconds(durations.into_iter().map(|d| d.as_secs_f64()))
    }
}

/// What a row keeps of its readings; the `seconds` object of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle reading, in seconds; between the middle two when their number is even.
    pub median: f64,
    /// The shortest reading, in seconds.
    pub min: f64,
    /// The longest reading, in seconds.
    pub max: f64,
    /// How many readings there were.
    pub samples: u64,
    /// First quartile, in seconds, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q1: Option<f64>,
    /// Third quartile, in seconds, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q3: Option<f64>,
}

impl Summary {
    /// Payload rate at the median, in GB/s (10⁹ bytes a second).
    #[must_use]
    pub fn gbps(&self, payload_bytes: u64) -> f64 {
        gbps(payload_bytes, self.median)
    }

    /// The same readings, each a whole of `parts` equal steps: a round trip into one-way times, or a
    /// batch into its members. `parts` below one divides by one.
    #[must_use]
    pub fn divided_by(self, parts: u32) -> Self {
        let parts = f64::from(parts.max(1));
        Self {
            median: self.median / parts,
            min: self.min / parts,
            max: self.max / parts,
            samples: self.samples,
            q1: self.q1.map(|q| q / parts),
            q3: self.q3.map(|q| q / parts),
        }
    }
}

/// Payload rate in GB/s of `payload_bytes` in `seconds`.
pub(crate) fn gbps(payload_bytes: u64, seconds: f64) -> f64 {
    // A payload above 2^53 bytes would round; no machine holds one.
    payload_bytes as f64 / seconds / 1e9
}

/// The `numerator / denominator` quantile of an ascending, non-empty list, linearly interpolated
/// between neighbours. The fraction must not exceed one.
fn quantile(sorted: &[f64], numerator: usize, denominator: usize) -> f64 {
    let scaled = (sorted.len() - 1) * numerator;
    let below = scaled / denominator;
    let fraction = (scaled % denominator) as f64 / denominator as f64;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even_numbers_of_readings() {
        let odd = Samples::from_seconds([3.0, 1.0, 2.0, 5.0, 4.0]).summary().unwrap();
        assert_eq!(
            odd,
            Summary { median: 3.0, min: 1.0, max: 5.0, samples: 5, q1: Some(2.0), q3: Some(4.0) }
        );
        let even = Samples::from_seconds([4.0, 1.0, 2.0, 3.0]).summary().unwrap();
        assert_eq!((even.median, even.q1, even.q3), (2.5, Some(1.75), Some(3.25)));
    }

    #[test]
    fn one_reading_is_its_own_summary() {
        let one = Samples::from_seconds([0.5]).summary().unwrap();
        assert_eq!((one.median, one.min, one.max, one.samples), (0.5, 0.5, 0.5, 1));
        assert_eq!((one.q1, one.q3), (Some(0.5), Some(0.5)));
    }

    #[test]
    fn no_readings_and_bad_readings_are_named() {
        assert_eq!(Samples::default().summary(), Err(NoSamples::Empty));
        for bad in [0.0, -1.0, f64::INFINITY] {
            assert_eq!(
                Samples::from_seconds([1.0, bad]).summary(),
                Err(NoSamples::NotADuration { index: 1, seconds: bad })
            );
        }
        assert!(Samples::from_seconds([f64::NAN]).summary().is_err());
    }

    #[test]
    fn rates_and_parts() {
        let s = Samples::from_iter([std::time::Duration::from_millis(2)]).summary().unwrap();
        assert!((s.gbps(4_000_000) - 2.0).abs() < 1e-12);
        assert!((s.divided_by(2).gbps(4_000_000) - 4.0).abs() < 1e-12);
        assert_eq!(s.divided_by(0), s);
    }
}
