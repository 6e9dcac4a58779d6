//! Paged key-value caches of language models: listed pages of one server's cache, for other listed pages of another's.
//!
//! A cache is (layers, K and V, pages, tokens, heads, width) of 16-bit floats, the last index fastest, with variations:
//! K and V may lie side by side in each page, heads may come before tokens, and latent attention has one vector for
//! both. Servers that split heads among different numbers of GPUs (tensor parallelism) exchange a part of the wider
//! page.

use gapless_dtype::{Datatype, Primitive};

use crate::{
    case::{Case, Side, array_bytes, signed},
    error::LayoutError,
    families::Family,
    index_list::{IndexList, runs},
};

const LAYOUT: &str = "kv-pages";
const ELEMENT: u64 = 2;

/// Where the keys and the values of a token are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysValues {
    /// In one page, the keys first.
    Together,
    /// In two arrays of a layer, the keys' first.
    Apart,
    /// One vector stands for both.
    Latent,
}

/// A cache of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Layers, back to back.
    pub layers: u64,
    /// Pages of a layer.
    pub pages: u64,
    /// Tokens of a page.
    pub tokens: u64,
    /// Heads that this GPU has.
    pub heads: u64,
    /// Elements of a head.
    pub width: u64,
    /// Where keys and values are.
    pub keys_values: KeysValues,
    /// Whether a page has all tokens of a head before those of the next one.
    pub heads_first: bool,
}

impl Cache {
    /// Keys and values of a page, counted apart.
    fn planes(&self) -> u64 {
        if self.keys_values == KeysValues::Latent { 1 } else { 2 }
    }

    fn plane_bytes(&self) -> u64 {
        ELEMENT * self.tokens * self.heads * self.width
    }

    /// The planes of the listed pages in packed order, as indices in the whole cache.
    fn listed(&self, list: &[i64]) -> Result<Vec<i64>, LayoutError> {
        let pages = signed(LAYOUT, self.pages)?;
        let mut planes = Vec::new();
        for layer in 0..signed(LAYOUT, self.layers)? {
            match self.keys_values {
                KeysValues::Latent => planes.extend(list.iter().map(|page| layer * pages + page)),
                KeysValues::Together => {
                    let both = |page| [0, 1].map(|value| 2 * (layer * pages + page) + value);
                    planes.extend(list.iter().copied().flat_map(both));
                }
                KeysValues::Apart => {
                    for value in [0, 1] {
                        planes.extend(list.iter().map(|page| (2 * layer + value) * pages + page));
                    }
                }
            }
        }
        Ok(planes)
    }

    /// The last `heads` heads of listed pages, tokens or heads first in packed order; and their blocks.
    fn side(
        &self,
        list: &[i64],
        heads: u64,
        heads_first: bool,
    ) -> Result<(Side, u64), LayoutError> {
        let planes = self.planes();
        let bytes = array_bytes(LAYOUT, &[self.layers, planes, self.pages, self.plane_bytes()])?;
        let (token, head) = match self.heads_first {
            true => (ELEMENT * self.width, ELEMENT * self.tokens * self.width),
            false => (ELEMENT * self.heads * self.width, ELEMENT * self.width),
        };
        let repeated = |count, stride, old: &Datatype| {
            Ok::<_, LayoutError>(Datatype::hvector(count, 1, signed(LAYOUT, stride)?, old)?)
        };
        let vector = Datatype::contiguous(self.width, &Primitive::BFloat16.into())?;
        let plane = match heads_first {
            true => repeated(heads, head, &repeated(self.tokens, token, &vector)?)?,
            false => repeated(self.tokens, token, &repeated(heads, head, &vector)?)?,
        };
        let page = match self.keys_values {
            KeysValues::Together => repeated(2, self.plane_bytes(), &plane)?,
            KeysValues::Apart | KeysValues::Latent => plane,
        };
        let apart = self.keys_values == KeysValues::Apart;
        let page_bytes = self.plane_bytes() * if apart { 1 } else { planes };
        let step = signed(LAYOUT, page_bytes)?;
        let starts: Vec<i64> = list.iter().map(|index| index * step).collect();
        let mut pages = Datatype::hindexed_block(1, &starts, &page)?;
        if apart {
            pages = repeated(2, self.pages * page_bytes, &pages)?;
        }
        let all = repeated(self.layers, bytes / self.layers, &pages)?;

        let listed = self.listed(list)?;
        let (number, whole) = (listed.len() as u64, heads == self.heads);
        let blocks = match (whole, heads_first == self.heads_first) {
            (true, true) => runs(&listed),
            // Each vector is a block, but the last one of a plane may be next to the following plane.
            (true, false) => number * (self.tokens * heads - 1) + runs(&listed),
            (false, true) => number * if heads_first { 1 } else { self.tokens },
            (false, false) => number * self.tokens * heads,
        };
        Ok((Side::one(all, head * (self.heads - heads), bytes), blocks))
    }
}

/// `listed` pages of one cache go to as many of another. The server with more heads sends, or receives, its last ones.
///
/// The lists are drawn apart from each other; packed order is the sender's.
///
/// # Errors
/// [`LayoutError`] if a number is 0, the caches differ in layers, tokens, width, or in where keys and values are; if
/// caches of different orders have different heads, or less than two heads or tokens; if a list cannot be made, or a
/// cache is too large.
pub fn pages(from: &Cache, to: &Cache, listed: u64, lists: IndexList) -> Result<Case, LayoutError> {
    let refuse = |rule| Err(LayoutError::Parameters { layout: LAYOUT, rule });
    for cache in [from, to] {
        let Cache { layers, pages, tokens, heads, width, .. } = *cache;
        array_bytes(LAYOUT, &[ELEMENT, 2, layers, pages, tokens, heads, width])?;
    }
    let shared = |cache: &Cache| (cache.layers, cache.tokens, cache.width, cache.keys_values);
    if shared(from) != shared(to) {
        return refuse(
            "both caches need the same layers, tokens, width, and place of keys and values",
        );
    }
    let turned = from.heads_first != to.heads_first;
    if turned && (from.heads != to.heads || from.heads < 2 || from.tokens < 2) {
        return refuse(
            "caches of different orders need the same heads, and two tokens and heads or more",
        );
    }
    let heads = from.heads.min(to.heads);
    let side = |cache: &Cache, stream| {
        let list = lists.take(LAYOUT, cache.pages, listed, stream)?;
        cache.side(&list, heads, from.heads_first)
    };
    let ((send, sent), (recv, received)) = (side(from, 0)?, side(to, 1)?);
    Ok(Case {
        name: format!("KV {} pages of {} tokens", listed, from.tokens),
        family: Family::KvPages,
        payload_bytes: send.payload_bytes(),
        send,
        recv,
        expected_send_blocks: Some(sent),
        expected_recv_blocks: Some(received),
    })
}

/// Tokens of a page, as servers have them.
pub const PAGE_TOKENS: [u64; 3] = [16, 32, 64];

/// The messages of the catalogue: half of a cache of 4096 tokens moves, with heads of 128 elements (two on each GPU, or
/// four) and up to 32 layers, or latent vectors of 576 elements and up to 27 layers.
pub(crate) fn catalogue(tokens: u64, lists: IndexList) -> Result<Vec<Case>, LayoutError> {
    use KeysValues::{Apart, Latent, Together};
    let pages_of_layer = 4096_u64.checked_div(tokens).unwrap_or(0);
    let one = Cache {
        layers: 1,
        pages: pages_of_layer,
        tokens,
        heads: 2,
        width: 128,
        keys_values: Together,
        heads_first: false,
    };
    let all = Cache { layers: 32, ..one };
    let apart = |cache| Cache { keys_values: Apart, ..cache };
    let latent = |layers| Cache { layers, heads: 1, width: 576, keys_values: Latent, ..one };
    let wide = Cache { heads: 4, ..one };
    let turned = |cache| Cache { heads_first: true, ..cache };
    let messages = [
        ("together", one, one),
        ("together, 32 layers", all, all),
        ("apart", apart(one), apart(one)),
        ("apart, 32 layers", apart(all), apart(all)),
        ("latent", latent(1), latent(1)),
        ("latent, 27 layers", latent(27), latent(27)),
        ("tokens to heads first", one, turned(one)),
        ("4 to 2 GPUs, tokens first", one, wide),
        ("4 to 2 GPUs, heads first", turned(one), turned(wide)),
        ("2 to 4 GPUs, tokens first", wide, one),
        ("2 to 4 GPUs, heads first", turned(wide), turned(one)),
    ];
    let case = |(label, from, to): (&str, Cache, Cache)| {
        let case = pages(&from, &to, pages_of_layer / 2, lists.drawn())?;
        Ok(Case { name: format!("KV pages {tokens} {label}{}", lists.suffix()), ..case })
    };
    messages.into_iter().map(case).collect()
}
