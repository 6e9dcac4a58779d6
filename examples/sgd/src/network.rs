//! The network: 64 pixels, 32 hidden cells (rectified), 10 digits (softmax), with the gradient of the cross entropy.
//! Plain loops: what this example shows is the exchange.

use crate::data::{CLASSES, Image, PIXELS};

/// Hidden cells.
pub const HIDDEN: usize = 32;

/// Numbers of each tensor: weights and biases, layer by layer.
pub const TENSORS: [usize; 4] = [HIDDEN * PIXELS, HIDDEN, CLASSES * HIDDEN, CLASSES];

/// A number for each weight and each bias: the network itself, or a gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The tensors, as in [`TENSORS`].
    pub tensors: [Vec<f32>; 4],
}

/// What an image is taken for.
struct Seen {
    hidden: [f32; HIDDEN],
    /// How sure it is of each digit; in all 1.
    digits: [f32; CLASSES],
}

impl Network {
    /// Nothing but zeros.
    #[must_use]
    pub fn zeros() -> Network {
        Network { tensors: TENSORS.map(|len| vec![0.0; len]) }
    }

    /// Random weights (splitmix64), the same for one seed everywhere.
    #[must_use]
    pub fn random(mut seed: u64) -> Network {
        let mut next = || {
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            // 24 bits, which a float holds.
            (((z ^ (z >> 31)) >> 40) as f32) / (1u32 << 23) as f32 - 1.0
        };
        let mut network = Network::zeros();
        for (tensor, inputs) in [(0, PIXELS), (2, HIDDEN)] {
            let scale = (6.0 / inputs as f32).sqrt();
            network.tensors[tensor].iter_mut().for_each(|weight| *weight = next() * scale);
        }
        network
    }

    fn see(&self, image: &Image) -> Seen {
        let [weights, biases, out_weights, out_biases] = &self.tensors;
        let mut hidden = [0.0; HIDDEN];
        for (cell, value) in hidden.iter_mut().enumerate() {
            let row = &weights[cell * PIXELS..][..PIXELS];
            let sum: f32 =
                row.iter().zip(&image.pixels).map(|(weight, pixel)| weight * pixel).sum();
            *value = (sum + biases[cell]).max(0.0);
        }
        let mut digits = [0.0; CLASSES];
        for (digit, value) in digits.iter_mut().enumerate() {
            let row = &out_weights[digit * HIDDEN..][..HIDDEN];
            let sum: f32 = row.iter().zip(&hidden).map(|(weight, cell)| weight * cell).sum();
            *value = sum + out_biases[digit];
        }
        let most = digits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        digits.iter_mut().for_each(|value| *value = (*value - most).exp());
        let all: f32 = digits.iter().sum();
        digits.iter_mut().for_each(|value| *value /= all);
        Seen { hidden, digits }
    }

    /// Adds an image's gradient; gives its loss.
    pub fn learn(&self, image: &Image, gradient: &mut Network) -> f32 {
        let Seen { hidden, mut digits } = self.see(image);
        let loss = -digits[image.digit].max(f32::MIN_POSITIVE).ln();
        digits[image.digit] -= 1.0;
        let mut back = [0.0; HIDDEN];
        let [weights, biases, out_weights, out_biases] = &mut gradient.tensors;
        for (digit, error) in digits.iter().enumerate() {
            let row = digit * HIDDEN..(digit + 1) * HIDDEN;
            let own = &self.tensors[2][row.clone()];
            for (((sum, cell), back), weight) in
                out_weights[row].iter_mut().zip(&hidden).zip(&mut back).zip(own)
            {
                *sum += error * cell;
                *back += error * weight;
            }
            out_biases[digit] += error;
        }
        for (cell, error) in back.iter().enumerate().filter(|(cell, _)| hidden[*cell] > 0.0) {
            let row = &mut weights[cell * PIXELS..][..PIXELS];
            row.iter_mut().zip(&image.pixels).for_each(|(sum, pixel)| *sum += error * pixel);
            biases[cell] += error;
        }
        loss
    }

    /// Goes down a gradient.
    pub fn step(&mut self, gradient: &Network, rate: f32) {
        for (tensor, slope) in self.tensors.iter_mut().zip(&gradient.tensors) {
            tensor.iter_mut().zip(slope).for_each(|(weight, slope)| *weight -= rate * slope);
        }
    }

    /// The share of images that it takes for what they are.
    #[must_use]
    pub fn right(&self, images: &[Image]) -> f64 {
        let is_right = |image: &&Image| {
            let digits = self.see(image).digits;
            let most = digits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            digits[image.digit] >= most
        };
        images.iter().filter(is_right).count() as f64 / images.len().max(1) as f64
    }
}
