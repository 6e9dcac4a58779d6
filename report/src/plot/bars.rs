//! GB/s by case as horizontal bars, in the legend's order from the top down; a new page where one is full.

use kuva::backend::svg::SvgBackend;
use kuva::plot::{BarPlot, LegendEntry, LegendPosition, LegendShape};
use kuva::render::layout::{ComputedLayout, Layout};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::chart::{LEGEND_FRAME_PX, LEGEND_PX, count};
use super::text::{self, TICK_PX};
use super::{COLOURS, HEIGHT_MAX, PlotError, WIDTH, scale};

/// Pixels of a bar, and between two groups. A group of one bar has room for its label.
const BAR_PX: f64 = 10.0;
const GAP_PX: f64 = 8.0;
/// Pixels above and below the bars: title, axis and its label; a little more than it takes.
const FRAME_PX: f64 = 120.0;

/// Pixels beside the labels, at least: bars, legend, and half of a title that is as wide as it usually is.
const BESIDE_PX: f64 = 560.0;

/// The bars of one case, one for each name in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// The case.
    pub label: String,
    /// Rates, in GB/s, in the legend's order; 0 leaves a gap.
    pub gbps: Vec<f64>,
}

/// GB/s by case, horizontal bars in groups, on as many pages as it takes; `names` is the legend. A page has an axis of its
/// own, and only names that have a bar on it.
///
/// # Errors
/// [`PlotError`] when there is no group, a group is not as long as `names`, or a rate is negative or
/// not finite.
pub fn bars(title: &str, names: &[&str], groups: &[BarGroup]) -> Result<Vec<String>, PlotError> {
    if groups.is_empty() || names.is_empty() {
        return Err(PlotError::Empty);
    }
    for group in groups {
        if group.gbps.len() != names.len() {
            return Err(PlotError::UnevenGroup {
                group: group.label.clone(),
                bars: group.gbps.len(),
                names: names.len(),
            });
        }
        if let Some(&value) = group.gbps.iter().find(|v| !v.is_finite() || **v < 0.0) {
            return Err(PlotError::OffAxis { name: group.label.clone(), value });
        }
    }
    let each = pitch(shown(names, groups).len());
    let full = |more: &usize| each * count(more + 1) > HEIGHT_MAX - FRAME_PX;
    let fitting = (1..groups.len()).find(full).unwrap_or(groups.len());
    let pages = pages_of(groups, fitting);
    let drawn = pages.iter().enumerate().map(|(at, part)| match pages.len() {
        1 => page(title, names, part),
        pages => page(&format!("{title}, {} of {pages}", at + 1), names, part),
    });
    Ok(drawn.collect())
}

/// `groups` in parts of at most `fitting`. What is of one magnitude stays together, since a page has one axis; pages are
/// few, and about as long as each other.
fn pages_of(groups: &[BarGroup], fitting: usize) -> Vec<&[BarGroup]> {
    let peak = |group: &BarGroup| group.gbps.iter().copied().fold(0.0, f64::max);
    let peaks: Vec<f64> = groups.iter().map(peak).collect();
    let page = count(fitting);
    // What the first groups cost at best, and where their last page begins.
    let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
    for end in 1..=groups.len() {
        let mut cheapest = (f64::INFINITY, 0);
        for begin in end.saturating_sub(fitting)..end {
            let most = peaks[begin..end].iter().copied().fold(0.0, f64::max);
            // How much shorter each group's longest bar is than the axis: a page is worth a factor of e for all of it.
            let shown = peaks[begin..end].iter().filter(|peak| **peak > 0.0);
            let short: f64 = shown.map(|peak| (most / peak).ln()).sum();
            let uneven = 0.2 * count(end - begin).powi(2) / page;
            let cost = best[begin].0 + page + short + uneven;
            if cost < cheapest.0 {
                cheapest = (cost, begin);
            }
        }
        best.push(cheapest);
    }
    let (mut pages, mut end) = (Vec::new(), groups.len());
    while end > 0 {
        let (_, begin) = best[end];
        pages.push(&groups[begin..end]);
        end = begin;
    }
    pages.reverse();
    pages
}

/// The names that have a bar, by their place in the legend.
fn shown(names: &[&str], groups: &[BarGroup]) -> Vec<usize> {
    let has_bar = |at: &usize| groups.iter().any(|group| group.gbps[*at] > 0.0);
    let shown: Vec<usize> = (0..names.len()).filter(has_bar).collect();
    if shown.is_empty() { vec![0] } else { shown }
}

/// Pixels from one group of so many bars to the next; never more than a page has.
fn pitch(bars: usize) -> f64 {
    (BAR_PX * count(bars) + GAP_PX).min(HEIGHT_MAX - FRAME_PX)
}

fn page(title: &str, names: &[&str], groups: &[BarGroup]) -> String {
    let shown = shown(names, groups);
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    let filled = 1.0 - GAP_PX / pitch(shown.len());
    let mut plot = BarPlot::new().with_horizontal(true).with_width(filled);
    // kuva builds from the bottom up; readers start at the top.
    for group in groups.iter().rev() {
        let bars = shown.iter().rev().map(|&at| (group.gbps[at], colour(at)));
        plot = plot.with_group(group.label.clone(), bars);
    }
    let entry = |&at: &usize| LegendEntry {
        label: names[at].to_owned(),
        color: colour(at).to_owned(),
        shape: LegendShape::Rect,
        dasharray: None,
    };
    let most = groups.iter().flat_map(|group| &group.gbps).copied().fold(0.0, f64::max);
    let axis = scale::linear(0.0, most);
    let labels = groups.iter().map(|group| text::width(&group.label, TICK_PX)).fold(0.0, f64::max);
    let plots = vec![Plot::Bar(plot)];
    let layout = Layout::auto_from_plots(&plots)
        .with_title(title)
        .with_width(WIDTH.max(labels + BESIDE_PX))
        .with_height(HEIGHT_MAX)
        .with_x_label("GB/s (payload)")
        .with_x_axis_min(axis.low)
        .with_x_axis_max(axis.high)
        .with_x_tick_step(axis.step)
        .with_legend_entries(shown.iter().map(entry).collect())
        .with_legend_position(LegendPosition::OutsideRightTop);
    let frame = HEIGHT_MAX - ComputedLayout::from_layout(&layout).plot_height();
    let legend = LEGEND_FRAME_PX + LEGEND_PX * count(shown.len());
    let height = (frame + pitch(shown.len()) * count(groups.len())).max(legend).min(HEIGHT_MAX);
    SvgBackend.render_scene(&render_multiple(plots, layout.with_height(height)))
}
