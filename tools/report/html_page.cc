// Style, script and pictures are inside the page. Each cell has its exact value as an attribute, and the
// script sorts by that. All text of logs goes through HtmlText, because a log line may contain anything.

#include "tools/report/html_page.h"

#include <algorithm>

#include "tools/cli/printable.h"
#include "tools/report/report_text.h"

namespace cairn {
namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
th { border-bottom: 2px solid #888; cursor: pointer; } .n { text-align: right; }
tr.fail td { background: #fff1ee; } tr.open td { background: #fffbe6; } code { background: #f4f4f4; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
)";

// A click on a heading sorts by it, and a second click reverses the order; missing values and NaN stay last.
// Text is never read as a number: "13B-run" would come before "104B".
constexpr const char* kScript = R"(
document.querySelectorAll('th').forEach((th, i) => th.onclick = () => {
  const body = document.querySelector('tbody'), down = th.dataset.down !== '1';
  th.dataset.down = down ? '1' : '0';
  const value = row => { const t = row.cells[i].dataset.value; return t !== '' && th.className === 'n' ? Number(t) : t; };
  const last = x => x === '' || Number.isNaN(x);
  [...body.rows].sort((a, b) => { const x = value(a), y = value(b);
    if (last(x) || last(y)) return last(x) - last(y);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? 1 : -1); }).forEach(row => body.append(row));
});
)";

using Entity = std::pair<char, std::string_view>;
constexpr Entity kEntities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};

std::string HtmlText(std::string_view text) {
  std::string out;
  for (const char c : Printable(std::string(text), Lines::kOne)) {
    const auto entity = std::ranges::find(kEntities, c, &Entity::first);
    if (entity == std::end(kEntities))
      out += c;
    else
      out += entity->second;
  }
  return out;
}

std::string Table(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  std::string out = "<table>\n<thead><tr>";
  for (const ReportColumn* column : columns)
    out += fmt::format("<th{}>{}</th>", column->number ? " class=n" : "", HtmlText(column->heading));
  out += "</tr></thead>\n<tbody>\n";
  for (const RunSummary& run : runs) {
    out += run.end == RunEnd::kFailed ? "<tr class=fail>" : run.ok() ? "<tr>" : "<tr class=open>";
    for (const ReportColumn* column : columns)
      out += fmt::format("<td{} data-value=\"{}\">{}</td>", column->number ? " class=n" : "",
                         HtmlText(RawCell(*column, run)), HtmlText(Cell(*column, run)));
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table>\n";
}

std::string Failures(const std::vector<RunSummary>& runs) {
  std::string out;
  const auto tell = [&out](const Failure& failed) {
    out += fmt::format("<li>{}, line {}: {}<br><code>{}</code></li>\n", HtmlText(failed.file), failed.line,
                       HtmlText(failed.cause), HtmlText(failed.text));
  };
  for (const RunSummary& run : runs) {
    for (const Failure& failed : run.failures) tell(failed);
    if (run.failure) tell(*run.failure);
  }
  return out.empty() ? "" : "<h2>Failures</h2>\n<ul>\n" + out + "</ul>\n";
}

// Without the header that only a document may have.
std::string_view Inline(std::string_view svg) {
  const size_t begin = svg.find("<svg");
  return begin == svg.npos ? svg : svg.substr(begin);
}

}  // namespace

std::string HtmlPage(const ColumnList& columns, const std::vector<RunSummary>& runs,
                     const std::vector<std::string>& pictures) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=en>\n<head><meta charset=utf-8><title>Training "
      "runs</title><style>{}</style></head>\n"
      "<body>\n<h1>Training runs</h1>\n",
      kStyle);
  out += Table(columns, runs);
  for (const std::string& picture : pictures) out += "<h2>Curves</h2>\n" + std::string(Inline(picture));
  out += Failures(runs);
  return out + fmt::format("<script>{}</script>\n</body>\n</html>\n", kScript);
}

}  // namespace cairn
