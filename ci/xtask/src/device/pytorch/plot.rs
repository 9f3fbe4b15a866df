//! The plot of the ablation: how much longer a step takes than by the local driver, over the round
//! trip time, with calls posted and with every call waited for.

use std::fmt::Write;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// The program.
    pub name: &'static str,
    /// Whether every call was waited for.
    pub waits: bool,
    /// Microseconds that were added to each reply.
    pub rtt_us: u64,
    /// Of the local time of a step.
    pub ratio: f64,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 50.0;
/// Colours that the colour-blind tell apart too.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// An SVG document. The ratio's axis is logarithmic; round trip times stand in equal steps.
pub(super) fn svg(points: &[Point]) -> String {
    let mut times: Vec<u64> = points.iter().map(|p| p.rtt_us).collect();
    times.sort_unstable();
    times.dedup();
    let points = || {
        points
            .iter()
            .filter(|p| p.ratio.is_finite() && p.ratio > 0.0)
    };
    let most = points().fold(10.0, |most: f64, p| most.max(p.ratio));
    let decades = most.log10().ceil();
    // Half a decade is left below a ratio of 1.
    let y = |ratio: f64| {
        let part = (ratio.log10().max(-0.5) + 0.5) / (decades + 0.5);
        HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)
    };
    let step = (WIDTH - LEFT - RIGHT) / times.len().saturating_sub(1).max(1) as f64;
    let x = |rtt: u64| LEFT + step * times.partition_point(|t| *t < rtt) as f64;

    let mut body = String::new();
    let (right, low) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for decade in 0..=decades as i32 {
        let (ratio, at) = (10_f64.powi(decade), y(10_f64.powi(decade)));
        writeln!(
            body,
            r##"<path d="M{LEFT} {at:.1}H{right}" stroke="#ccc"/><text x="{:.1}" y="{:.1}" text-anchor="end">{ratio}</text>"##,
            LEFT - 8.0,
            at + 4.0
        )
        .ok();
    }
    for rtt in &times {
        let ms = *rtt as f64 / 1e3;
        writeln!(
            body,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">+ {ms} ms</text>"#,
            x(*rtt),
            low + 20.0
        )
        .ok();
    }
    let mut names: Vec<&str> = points().map(|p| p.name).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    let all = names
        .iter()
        .flat_map(|name| [(*name, false), (*name, true)]);
    for (at, (name, waits)) in all.enumerate() {
        let mut line: Vec<&Point> = points()
            .filter(|p| p.name == name && p.waits == waits)
            .collect();
        line.sort_by_key(|p| p.rtt_us);
        let places = line.iter().map(|p| (x(p.rtt_us), y(p.ratio)));
        let path: Vec<String> = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let colour = COLOURS[at / 2 % COLOURS.len()];
        let (dash, how) = match waits {
            true => (r#" stroke-dasharray="5 4""#, "every call waited for"),
            false => ("", "posted"),
        };
        let legend = TOP + 10.0 + 20.0 * at as f64;
        writeln!(
            body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>
<path d="M{:.1} {legend}h24" stroke="{colour}" stroke-width="2"{dash}/><text x="{:.1}" y="{}">{name}, {how}</text>"#,
            path.join(" "),
            right + 20.0,
            right + 50.0,
            legend + 4.0
        )
        .ok();
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{LEFT}" y="18">time of a step, of the local driver's</text>
{body}<text x="{:.1}" y="{:.1}" text-anchor="middle">round trip time</text>
</svg>
"##,
        (LEFT + right) / 2.0,
        HEIGHT - 10.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_two_lines_and_larger_is_higher() {
        let point = |name, waits, rtt_us, ratio| Point {
            name,
            waits,
            rtt_us,
            ratio,
        };
        let text = svg(&[
            point("gpt", false, 0, 1.0),
            point("gpt", false, 5000, 100.0),
            point("gpt", true, 5000, f64::NAN),
            point("mlp", false, 300, 10.0),
        ]);
        assert_eq!(text.matches("<polyline").count(), 4);
        assert!(!text.contains("NaN") && text.contains("+ 0.3 ms"));
        let line = text.split("points=\"").nth(1).unwrap();
        let ends: Vec<(f64, f64)> = line[..line.find('"').unwrap()]
            .split(' ')
            .map(|p| p.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        // The ratio of 100 is at the top, that of 1 half a decade above the foot.
        assert_eq!(ends, [(LEFT, 286.0), (WIDTH - RIGHT, TOP)]);
    }
}
