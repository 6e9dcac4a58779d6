//! Two processes that know each other, for targets that play one of them.

use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};

/// Ranks 0 and 1, connected over a loopback.
pub(crate) fn two() -> [Bml; 2] {
    let hub = Hub::new();
    let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
    for bml in &mut bmls {
        bml.add(Box::new(Loopback::new(&hub)));
    }
    let addresses = bmls.each_ref().map(Bml::addresses);
    for (at, bml) in bmls.iter_mut().enumerate() {
        let other = if at == 0 { Rank(1) } else { Rank(0) };
        bml.connect(other, &addresses[1 - at]).expect("both are there");
    }
    bmls
}
