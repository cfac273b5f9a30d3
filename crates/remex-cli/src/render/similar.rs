//! Finds likely corrections of a mistyped name.

use strsim::osa_distance;

/// Names shorter than this may have one wrong letter, longer ones two.
const LONG: usize = 6;

/// Returns the most similar of these names, if one is similar enough to be meant.
pub(crate) fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = if typed.chars().count() < LONG { 1 } else { 2 };
    // A name of which every letter could be wrong is similar to nothing.
    let fits = |name: &str, distance: usize| distance <= most && distance < name.chars().count();
    let distances = names.into_iter().map(|name| (osa_distance(name, typed), name));
    distances.filter(|(distance, name)| fits(name, *distance)).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found_and_others_are_not() {
        let names = ["build", "gpu", "staging", "x"];
        for (typed, meant) in [
            ("biuld", Some("build")),
            ("guild", Some("build")),
            ("gp", Some("gpu")),
            ("stagign", Some("staging")),
            ("satging2", Some("staging")),
            ("bolt", None),
            ("y", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), meant, "{typed}");
        }
    }
}
