//! A picture as it is drawn: where its texts, marks and bars are.

use super::text;

/// What a picture shows.
pub(super) struct Drawn {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) texts: Vec<Text>,
    /// Left, top, right and bottom of what the axes enclose.
    pub(super) clip: [f64; 4],
    /// Centres of the points of lines, and the ends of their spreads.
    pub(super) marks: Vec<(f64, f64)>,
    pub(super) bars: Vec<Bar>,
    /// Colours in the legend, from the top down.
    pub(super) legend: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) x: f64,
    pub(super) y: f64,
    size: f64,
    pub(super) anchor: String,
    upright: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) fill: String,
}

impl Text {
    /// Left, top, right and bottom.
    pub(super) fn edges(&self) -> [f64; 4] {
        let wide = text::width(&self.text, self.size);
        let (above, below) = (0.75 * self.size, 0.2 * self.size);
        if self.upright {
            return [self.x - above, self.y - wide / 2.0, self.x + below, self.y + wide / 2.0];
        }
        let left = match self.anchor.as_str() {
            "end" => self.x - wide,
            "middle" => self.x - wide / 2.0,
            _ => self.x,
        };
        [left, self.y - above, left + wide, self.y + below]
    }

    pub(super) fn touches(&self, other: &Text) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.edges(), other.edges());
        a < g && e < c && b < h && f < d
    }
}

impl Drawn {
    /// Reads what kuva writes; panics on anything else.
    pub(super) fn read(svg: &str) -> Drawn {
        let elements = || svg.split('<').filter(|element| !element.starts_with('/'));
        let picture = elements().find(|element| element.starts_with("svg ")).expect("a picture");
        let (mut texts, mut marks, mut bars, mut legend) = (vec![], vec![], vec![], vec![]);
        let mut clip = [0.0; 4];
        let mut within = false;
        for element in svg.split('<') {
            let is = |name: &str| element.split([' ', '>']).next() == Some(name);
            if is("text") {
                texts.push(Text {
                    text: unescaped(element.split_once('>').expect("a text").1),
                    x: number(element, "x"),
                    y: number(element, "y"),
                    size: number(element, "font-size"),
                    anchor: attribute(element, "text-anchor").unwrap_or("start").to_owned(),
                    upright: attribute(element, "transform").is_some(),
                });
            } else if is("g") {
                within |= attribute(element, "clip-path").is_some();
            } else if is("/g") {
                within = false;
            } else if is("circle") && within {
                marks.push((number(element, "cx"), number(element, "cy")));
            } else if is("line") && within {
                // Half of a spread; what closes it at its end lies across.
                let [x, end] = ["x1", "x2"].map(|name| number(element, name));
                if x == end {
                    marks.extend(["y1", "y2"].map(|name| (x, number(element, name))));
                }
            } else if is("rect") && attribute(element, "width") != Some("100%") {
                let [x, y] = ["x", "y"].map(|name| number(element, name));
                let [width, height] = ["width", "height"].map(|name| number(element, name));
                let fill = attribute(element, "fill").unwrap_or_default().to_owned();
                match (attribute(element, "fill"), within) {
                    (None, _) => clip = [x, y, x + width, y + height],
                    (Some(_), true) => bars.push(Bar { x, y, width, fill }),
                    (Some(_), false) if width < 13.0 => legend.push(fill),
                    _ => {}
                }
            }
        }
        let (width, height) = (number(picture, "width"), number(picture, "height"));
        Drawn { width, height, texts, clip, marks, bars, legend }
    }

    /// The largest text.
    pub(super) fn title(&self) -> &str {
        let largest = self.texts.iter().max_by(|one, other| one.size.total_cmp(&other.size));
        largest.map_or("", |text| &text.text)
    }
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = element.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

fn number(element: &str, name: &str) -> f64 {
    let text = attribute(element, name).unwrap_or_else(|| panic!("{name} in {element}"));
    text.parse().unwrap_or_else(|_| panic!("{name} in {element}"))
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
