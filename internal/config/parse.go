package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Why this walks the syntax tree of the library, and does not decode into structures with
// DisallowUnknownFields: Decode stops at the first value of a wrong type, and then does not
// report unknown keys; it reports keys that are written twice without their line; and it does
// not tell the lines of values that fit, which agent/rules needs for its own errors. The walk
// reports all errors at once. Decode decides only whether the file is TOML.

// bracketsMax limits how deep values are nested, because the library recurses.
const bracketsMax = 100_000

// parser walks a file.
type parser struct {
	toml     unstable.Parser
	config   *Config
	newlines []int          // offsets
	seen     map[string]int // line of each key and table header, by name
	errs     []*Error
}

// position is a place in the file, see Error.
type position struct{ line, column int }

// key is a part of a dotted key.
type key struct {
	name string
	at   position
}

func parse(file string, data []byte) (*Config, error) {
	p := &parser{
		config: &Config{
			Path: file, RunDir: DefaultRunDir, StateDir: DefaultStateDir,
			Log:    Log{Format: "text"},
			Charge: Charge{Enabled: true, Placement: true, Discovery: true},
		},
		seen: map[string]int{},
	}
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > bracketsMax {
		return nil, &Error{File: file, Err: fmt.Errorf("the file has more than %d brackets", bracketsMax)}
	}
	var tree map[string]any
	err := toml.Unmarshal(data, &tree)
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, column := syntax.Position()
		return nil, &Error{file, line, column, errors.New(strings.TrimPrefix(syntax.Error(), "toml: "))}
	}
	p.walk(data)
	if len(p.errs) == 0 && err != nil {
		p.fail(position{}, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	if len(p.errs) == 0 {
		return p.config, nil
	}
	slices.SortStableFunc(p.errs, func(a, b *Error) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	var errs []error
	for _, e := range p.errs {
		errs = append(errs, e)
	}
	return nil, errors.Join(errs...)
}

func (p *parser) fail(at position, format string, args ...any) {
	p.errs = append(p.errs, &Error{p.config.Path, at.line, at.column, fmt.Errorf(format, args...)})
}

func (p *parser) walk(data []byte) {
	for i, c := range data {
		if c == '\n' {
			p.newlines = append(p.newlines, i)
		}
	}
	table := ""
	for p.toml.Reset(data); p.toml.NextExpression(); {
		e := p.toml.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = p.header(p.keys(e), e.Kind == unstable.ArrayTable)
		case unstable.KeyValue:
			p.keyValue(table, e)
		}
	}
	if err := p.toml.Error(); err != nil {
		p.fail(position{}, "%w", err)
	}
	for i, c := range p.config.Containers {
		if p.seen[pathOf("container", "match", i)] == 0 {
			p.fail(position{line: c.Line}, `[[container]] has no match; write match = "*" for all containers`)
		}
	}
	for i, g := range p.config.Guests {
		for _, key := range []string{"name", "vsock"} {
			if p.seen[pathOf("guest", key, i)] == 0 {
				p.fail(position{line: g.Line}, "[[guest]] has no %s", key)
			}
		}
	}
	for i, a := range p.config.Allows {
		if p.seen[pathOf("allow", "engines", i)] == 0 {
			p.fail(position{line: a.Line}, `[[allow]] has no engines; there are %s`, list(Engines()))
		}
		if p.seen[pathOf("allow", "names", i)] == 0 {
			p.fail(position{line: a.Line}, `[[allow]] has no names; write names = ["*"] for all containers`)
		}
	}
}

func (p *parser) keys(n *unstable.Node) []key {
	var keys []key
	for it := n.Key(); it.Next(); {
		keys = append(keys, key{string(it.Node().Data), p.position(it.Node(), position{})})
	}
	return keys
}

// position returns the position of a node, or otherwise if the library does not have it.
func (p *parser) position(n *unstable.Node, otherwise position) position {
	if n.Raw.Length == 0 {
		return otherwise
	}
	offset := int(n.Raw.Offset)
	before := sort.SearchInts(p.newlines, offset)
	begin := 0 // of the line
	if before > 0 {
		begin = p.newlines[before-1] + 1
	}
	return position{1 + before, 1 + offset - begin}
}

// header begins a table and returns its name. For a wrong table it returns unknown; the parser
// does not check the keys of such a table.
func (p *parser) header(keys []key, array bool) string {
	name, at := join(keys), keys[0].at
	several, isArray := arrays[name]
	switch {
	case tables[name] == nil || name == "":
		p.fail(at, "unknown table %q; there are %s", name, list(tableNames()))
		return unknown
	case isArray && array:
		several.add(p.config, at.line)
	case isArray:
		p.fail(at, "%s is an array of tables; write [[%s]]", name, name)
		return unknown
	case array:
		p.fail(at, "%s is one table, not an array of tables; write [%s]", name, name)
		return unknown
	default:
		p.once("["+name+"]", at)
	}
	return name
}

const unknown = "?"

// once records a key or a table, and reports whether it is the first of its name.
func (p *parser) once(path string, at position) bool {
	if first := p.seen[path]; first != 0 {
		p.fail(at, "%s is written twice, first on line %d", shown(path), first)
		return false
	}
	p.seen[path] = at.line
	return true
}

// pathOf names a key of a table. The number distinguishes the tables of an array.
func pathOf(table, name string, number int) string {
	if table == "" {
		return name
	}
	if _, several := arrays[table]; several {
		return fmt.Sprintf("%d#%s.%s", number, table, name)
	}
	return table + "." + name
}

// shown returns a name of pathOf without the number.
func shown(path string) string { return path[strings.IndexByte(path, '#')+1:] }

func (p *parser) keyValue(table string, e *unstable.Node) {
	if table != unknown {
		p.put(table, p.keys(e), e.Value())
	}
}

// put takes a value. The key may be dotted, and the value may be an inline table.
func (p *parser) put(table string, keys []key, v *unstable.Node) {
	name, at := keys[0].name, keys[0].at
	_, isTable := tables[name]
	several, isArray := arrays[name]
	switch {
	case table != "" || name == "" || !isTable:
		p.set(table, join(keys), at, v)
	case isArray && len(keys) == 1 && v.Kind == unstable.Array:
		if !p.once(name, at) {
			return
		}
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.InlineTable {
				p.fail(p.position(it.Node(), at), "%s is an array of tables; write [[%s]]", name, name)
				continue
			}
			several.add(p.config, p.position(it.Node(), at).line)
			p.inline(name, it.Node())
		}
	case isArray:
		p.fail(at, "%s is an array of tables; write [[%s]]", name, name)
	case len(keys) > 1:
		p.put(name, keys[1:], v)
	case v.Kind == unstable.InlineTable:
		if p.once("["+name+"]", at) {
			p.inline(name, v)
		}
	default:
		p.fail(at, "%s is a table; write [%s]", name, name)
	}
}

func (p *parser) inline(table string, v *unstable.Node) {
	for it := v.Children(); it.Next(); {
		p.keyValue(table, it.Node())
	}
}

// set stores the value of a key of a table.
func (p *parser) set(table, name string, at position, v *unstable.Node) {
	set, known := tables[table][name]
	if !known {
		p.fail(at, "unknown key %q%s", name, hint(table, name))
		return
	}
	number := 0
	if several, isArray := arrays[table]; isArray {
		number = several.count(p.config) - 1
	}
	path := pathOf(table, name, number)
	if !p.once(path, at) {
		return
	}
	for _, e := range set(p.config, value{v, p.position(v, at), p.position}) {
		p.fail(position{e.Line, e.Column}, "%s %w", shown(path), e.Err)
	}
}

func join(keys []key) string {
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	return strings.Join(names, ".")
}

// hint proposes keys for an unknown key of a table.
func hint(table, name string) string {
	names := slices.Sorted(maps.Keys(tables[table]))
	for _, known := range names {
		if distance(known, name) <= 2 {
			return fmt.Sprintf("; did you mean %s?", known)
		}
	}
	for _, other := range tableNames() {
		if tables[other][name] != nil {
			return fmt.Sprintf("; it belongs below [%s]", other)
		}
	}
	return "; there are " + list(names)
}

// distance is the Levenshtein distance of two words: the number of letters to insert, delete
// or replace. 3 stands for a larger distance if the lengths differ by more than 2.
func distance(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3 // or more
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// list writes "a, b and c".
func list(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
