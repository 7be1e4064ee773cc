package report

import (
	"bytes"
	"encoding/csv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
)

// evil is a hostile name of a container, or a hostile error.
const evil = `"><script>window.pwned=1</script><img src="http://198.51.100.9/x" onerror="window.pwned=1">` +
	`</style><style>body{display:none}</style></title></svg>'--><!--{{.}}javascript:alert(1)` + "\x1b[2J\u202e|`\n\n# x\n=1"

// spoil appends evil to every text in a value, also to keys and values of maps.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			spoil(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && v.Type().Field(i).Name != "Better" {
				spoil(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			spoil(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return
		}
		spoilt := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			k, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			k.Set(key)
			value.Set(v.MapIndex(key))
			spoil(k)
			spoil(value)
			spoilt.SetMapIndex(k, value)
		}
		v.Set(spoilt)
	case reflect.String:
		v.SetString(v.String() + evil)
	}
}

func hostile() *result.Results {
	r := full(1)
	f := r.Figures[0]
	f.Series[0].Points[1].Samples, f.Series[0].Points[1].Failed = nil, "no"
	r.Incomplete = "no"
	spoil(reflect.ValueOf(r))
	return r
}

func hostilePages(t *testing.T) map[string][]byte {
	t.Helper()
	page, err := HTML(hostile())
	if err != nil {
		t.Fatal(err)
	}
	other := hostile()
	other.Machine.Kernel = "6.1"
	other.Figures[0].Name = "x" + evil
	comparison, err := ComparisonHTML(hostile(), other)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"report": page, "compare": comparison}
}

// TestMarkup checks that the texts of results.json stay text on the page and in the tables. It
// needs no browser.
func TestMarkup(t *testing.T) {
	for name, page := range hostilePages(t) {
		if n := bytes.Count(page, []byte("window.pwned")); n < 50 {
			t.Errorf("%s: only %d of the texts are there", name, n)
		}
		if bytes.Contains(page, []byte("<script")) || bytes.Contains(page, []byte("<img")) || bytes.Count(page, []byte("<style")) != 1 {
			t.Errorf("%s: text has become markup", name)
		}
	}
	for line := range strings.Lines(string(Markdown(hostile()))) {
		// An indented line is code, in which nothing is markup.
		if strings.ContainsAny(line, "<\x1b") && !strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "# x") {
			t.Errorf("text has become markup: %s", line)
		}
	}
	var out bytes.Buffer
	if err := Compare(hostile(), full(1)).Write(&out); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\u202e") {
		t.Error("the comparison has control characters")
	}
	formula := hostile()
	formula.Figures[0].Name, formula.Figures[0].Series[0].Name = "=1+1", "@x"
	rows, err := csv.NewReader(bytes.NewReader(CSV(formula.Figures...))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range slices.Concat(rows...) {
		if _, err := strconv.ParseFloat(cell, 64); cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) && err != nil {
			t.Errorf("a spreadsheet takes %q for a formula", cell)
		}
	}
}
