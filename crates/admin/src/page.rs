//! Tables in documents that are made from what the program knows. With `UPDATE=1`, tests write them.

/// The page at `path` from the repository's root has `table` as the first table behind `after`.
pub(crate) fn has_table(path: &str, after: &str, table: &str) {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let right = with_table(&page, after, table).unwrap_or_else(|| panic!("{path} lacks {after}"));
    if right != page && std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &right).unwrap();
        return;
    }
    assert!(
        right == page,
        "{path} lacks this behind {after:?}; with UPDATE=1 this test writes it:\n{table}"
    );
}

fn with_table(page: &str, after: &str, table: &str) -> Option<String> {
    let behind = page.find(after)? + after.len();
    let start = behind + page[behind..].find("\n| ")? + 1;
    let rows = page[start..].split_inclusive('\n');
    let rows = rows.take_while(|line| line.starts_with('|'));
    let end = start + rows.map(str::len).sum::<usize>();
    Some(format!("{}{table}{}", &page[..start], &page[end..]))
}

#[test]
fn one_table_takes_the_place_of_another() {
    let page = "# A\n\n| a |\n|---|\n| 1 |\n\n# B\n\n| b |\n|---|\n| 2 |\n";
    let right = "# A\n\n| a |\n|---|\n| 1 |\n\n# B\n\n| c |\n\n"
        .trim_end()
        .to_owned()
        + "\n";
    assert_eq!(with_table(page, "# B", "| c |\n"), Some(right));
    assert_eq!(with_table(page, "# C", ""), None);
}
