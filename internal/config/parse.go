package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// The library decodes into structures, but stops at the first value that does not
// fit, and does not tell where a value that fits was written. So it only says
// whether a file is TOML, and the keys are walked here.

// bracketsMax bounds how deep values can be nested: the library recurses.
const bracketsMax = 100_000

// parser walks a file.
type parser struct {
	toml     unstable.Parser
	config   *Config
	newlines []int          // offsets
	seen     map[string]int // line of each key and table header, by path
	errs     []*Error
}

// key is a part of a key, with its line.
type key struct {
	name string
	line int
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
		return nil, &Error{file, 0, fmt.Errorf("there are more than %d brackets", bracketsMax)}
	}
	var tree map[string]any
	err := toml.Unmarshal(data, &tree)
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, _ := syntax.Position()
		return nil, &Error{file, line, errors.New(strings.TrimPrefix(syntax.Error(), "toml: "))}
	}
	p.walk(data)
	if len(p.errs) == 0 && err != nil {
		p.fail(0, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	if len(p.errs) == 0 {
		return p.config, nil
	}
	slices.SortStableFunc(p.errs, func(a, b *Error) int { return a.Line - b.Line })
	var errs []error
	for _, e := range p.errs {
		errs = append(errs, e)
	}
	return nil, errors.Join(errs...)
}

func (p *parser) fail(line int, format string, args ...any) {
	p.errs = append(p.errs, &Error{p.config.Path, line, fmt.Errorf(format, args...)})
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
		p.fail(0, "%w", err)
	}
	for i, c := range p.config.Containers {
		if p.seen[pathOf("container", "match", i)] == 0 {
			p.fail(c.Line, `[[container]] has no match; match = "*" is for all containers`)
		}
	}
	for i, a := range p.config.Allows {
		if p.seen[pathOf("allow", "engines", i)] == 0 {
			p.fail(a.Line, `[[allow]] has no engines; there are %s`, list(Engines()))
		}
		if p.seen[pathOf("allow", "names", i)] == 0 {
			p.fail(a.Line, `[[allow]] has no names; names = ["*"] is for all containers`)
		}
	}
}

func (p *parser) keys(n *unstable.Node) []key {
	var keys []key
	for it := n.Key(); it.Next(); {
		keys = append(keys, key{string(it.Node().Data), p.line(it.Node(), 0)})
	}
	return keys
}

// line is that of a node, or another one if it does not know its own.
func (p *parser) line(n *unstable.Node, otherwise int) int {
	if n.Raw.Length == 0 {
		return otherwise
	}
	return 1 + sort.SearchInts(p.newlines, int(n.Raw.Offset))
}

// header begins a table, and returns its name: unknown for one that is not ours,
// whose keys nobody has to hear about.
func (p *parser) header(keys []key, array bool) string {
	name, line := join(keys), keys[0].line
	several, isArray := arrays[name]
	switch {
	case tables[name] == nil || name == "":
		p.fail(line, "unknown table %q; there are %s", name, list(tableNames()))
		return unknown
	case isArray && array:
		several.add(p.config, line)
	case isArray:
		p.fail(line, "[%s] is one of several; write [[%s]]", name, name)
		return unknown
	case array:
		p.fail(line, "there is one table %s; write [%s]", name, name)
		return unknown
	default:
		p.once("["+name+"]", line)
	}
	return name
}

const unknown = "?"

// once notes a key or a table, and tells whether it is the first of its name.
func (p *parser) once(path string, line int) bool {
	if first := p.seen[path]; first != 0 {
		p.fail(line, "%s is there twice, first on line %d", shown(path), first)
		return false
	}
	p.seen[path] = line
	return true
}

// pathOf names a key of a table; those of tables of which there are several are told
// apart by their number.
func pathOf(table, name string, number int) string {
	if table == "" {
		return name
	}
	if _, several := arrays[table]; several {
		return fmt.Sprintf("%d#%s.%s", number, table, name)
	}
	return table + "." + name
}

// shown is a path as users know it.
func shown(path string) string { return path[strings.IndexByte(path, '#')+1:] }

func (p *parser) keyValue(table string, e *unstable.Node) {
	if table != unknown {
		p.put(table, p.keys(e), e.Value())
	}
}

// put takes a value. A key may be dotted, and a table be written as a value.
func (p *parser) put(table string, keys []key, v *unstable.Node) {
	name, line := keys[0].name, keys[0].line
	_, isTable := tables[name]
	several, isArray := arrays[name]
	switch {
	case table != "" || name == "" || !isTable:
		p.set(table, join(keys), line, v)
	case isArray && len(keys) == 1 && v.Kind == unstable.Array:
		if !p.once(name, line) {
			return
		}
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.InlineTable {
				p.fail(p.line(it.Node(), line), "%s is an array of tables; write [[%s]]", name, name)
				continue
			}
			several.add(p.config, p.line(it.Node(), line))
			p.inline(name, it.Node())
		}
	case isArray:
		p.fail(line, "%s is an array of tables; write [[%s]]", name, name)
	case len(keys) > 1:
		p.put(name, keys[1:], v)
	case v.Kind == unstable.InlineTable:
		if p.once("["+name+"]", line) {
			p.inline(name, v)
		}
	default:
		p.fail(line, "%s is a table; write [%s]", name, name)
	}
}

func (p *parser) inline(table string, v *unstable.Node) {
	for it := v.Children(); it.Next(); {
		p.keyValue(table, it.Node())
	}
}

// set takes the value of a key of a table.
func (p *parser) set(table, name string, line int, v *unstable.Node) {
	set, known := tables[table][name]
	if !known {
		p.fail(line, "unknown key %q%s", name, hint(table, name))
		return
	}
	number := 0
	if several, isArray := arrays[table]; isArray {
		number = several.count(p.config) - 1
	}
	at := pathOf(table, name, number)
	if !p.once(at, line) {
		return
	}
	for _, e := range set(p.config, value{v, line, p.line}) {
		p.fail(e.Line, "%s %w", shown(at), e.Err)
	}
}

func join(keys []key) string {
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	return strings.Join(names, ".")
}

// hint says what may have been meant by a key of a table.
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

// distance is how many letters have to be put in, left out or replaced to make one
// word of another.
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
