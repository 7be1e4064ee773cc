package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2/unstable"
)

// value is a value, and where it is.
type value struct {
	node   *unstable.Node
	line   int // of its key
	lineOf func(n *unstable.Node, otherwise int) int
}

// kinds are what values can be.
var kinds = map[unstable.Kind]string{
	unstable.String: "a string", unstable.Bool: "a boolean", unstable.Integer: "an integer", unstable.Float: "a number",
	unstable.Array: "an array", unstable.InlineTable: "a table", unstable.LocalDate: "a date", unstable.LocalTime: "a time",
	unstable.LocalDateTime: "a date", unstable.DateTime: "a date",
}

// text takes a string that a check allows.
func text(field func(*Config) *string, check func(string) error) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.String {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be a string, not %s", kinds[v.node.Kind])}}
		}
		s := string(v.node.Data)
		if err := check(s); err != nil {
			return []Error{{Line: v.line, Err: fmt.Errorf("%q %w", s, err)}}
		}
		*field(c) = s
		return nil
	}
}

// flag takes a boolean.
func flag(field func(*Config) *bool) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.Bool {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be true or false, not %s", kinds[v.node.Kind])}}
		}
		*field(c) = string(v.node.Data) == "true"
		return nil
	}
}

// texts takes an array of strings.
func texts(field func(*Config) *[]Text) setter {
	return func(c *Config, v value) (errs []Error) {
		if v.node.Kind != unstable.Array {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be an array of strings, not %s", kinds[v.node.Kind])}}
		}
		for it := v.node.Children(); it.Next(); {
			n := it.Node()
			line := v.lineOf(n, v.line)
			if n.Kind != unstable.String {
				errs = append(errs, Error{Line: line, Err: fmt.Errorf("has to be an array of strings; in it is %s", kinds[n.Kind])})
				continue
			}
			*field(c) = append(*field(c), Text{string(n.Data), line})
		}
		return errs
	}
}

// checked takes an array of strings that a check allows. One that is empty is not nil.
func checked(field func(*Config) *[]Text, check func(string) error) setter {
	return func(c *Config, v value) []Error {
		*field(c) = []Text{}
		errs := texts(field)(c, v)
		for _, t := range *field(c) {
			if err := check(t.Text); err != nil {
				errs = append(errs, Error{Line: t.Line, Err: fmt.Errorf("%q %w", t.Text, err)})
			}
		}
		return errs
	}
}

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func logLevel(c *Config, v value) []Error {
	var name string
	errs := text(func(*Config) *string { return &name }, oneOf("debug", "info", "warn", "error"))(c, v)
	if errs == nil {
		c.Log.Level = levels[name]
	}
	return errs
}

func oneOf(names ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("is unknown; there are %s", list(names))
		}
		return nil
	}
}

func absolute(s string) error {
	switch {
	case !filepath.IsAbs(s):
		return errors.New("is no absolute path; it has to start with a slash")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("has a control character in it")
	}
	return nil
}

// addrPort allows nothing, or where to listen.
func addrPort(s string) error {
	if s == "" {
		return nil
	}
	if a, err := netip.ParseAddrPort(s); err != nil || a.Port() == 0 {
		return errors.New("is not ADDR:PORT, an IP address (IPv6 in brackets) and a port of 1 to 65535")
	}
	return nil
}

func pattern(s string) error {
	if s == "" {
		return errors.New("matches nothing; * is for all containers")
	}
	if _, err := path.Match(s, ""); err != nil {
		return errors.New("is no pattern; * is any letters, ? one, [a-z] one of these, and \\ takes their meaning from them")
	}
	return nil
}

// pathPattern allows a pattern of absolute paths, or a folder.
func pathPattern(s string) error {
	if err := absolute(s); err != nil {
		return err
	}
	if clean := path.Clean(s); clean != strings.TrimSuffix(s, "/") || clean == "/" {
		return errors.New("is no path as it should be written: without //, . and .., and below a folder of its own")
	}
	return pattern(s)
}

func nonEmpty(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	return nil
}
