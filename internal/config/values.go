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

// value is a value of the file.
type value struct {
	node *unstable.Node
	at   position
	// positionOf returns the position of an element of an array; otherwise if the parser does
	// not know it.
	positionOf func(n *unstable.Node, otherwise position) position
}

// fault returns an error at a position of the file. The caller adds the name of the file.
func fault(at position, format string, args ...any) Error {
	return Error{Line: at.line, Column: at.column, Err: fmt.Errorf(format, args...)}
}

// kinds names the kinds of values for messages.
var kinds = map[unstable.Kind]string{
	unstable.String: "a string", unstable.Bool: "a boolean", unstable.Integer: "an integer", unstable.Float: "a number",
	unstable.Array: "an array", unstable.InlineTable: "a table", unstable.LocalDate: "a date", unstable.LocalTime: "a time",
	unstable.LocalDateTime: "a date", unstable.DateTime: "a date",
}

// text takes a string that a check allows.
func text(field func(*Config) *string, check func(string) error) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.String {
			return []Error{fault(v.at, "must be a string, not %s", kinds[v.node.Kind])}
		}
		s := string(v.node.Data)
		if err := check(s); err != nil {
			return []Error{fault(v.at, "%q %w", s, err)}
		}
		*field(c) = s
		return nil
	}
}

// flag takes a boolean.
func flag(field func(*Config) *bool) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.Bool {
			return []Error{fault(v.at, "must be true or false, not %s", kinds[v.node.Kind])}
		}
		*field(c) = string(v.node.Data) == "true"
		return nil
	}
}

// texts takes an array of strings.
func texts(field func(*Config) *[]Text) setter {
	return elements(field, func(string) error { return nil })
}

// elements takes an array of strings that a check allows.
func elements(field func(*Config) *[]Text, check func(string) error) setter {
	return func(c *Config, v value) (errs []Error) {
		if v.node.Kind != unstable.Array {
			return []Error{fault(v.at, "must be an array of strings, not %s", kinds[v.node.Kind])}
		}
		for it := v.node.Children(); it.Next(); {
			n := it.Node()
			at := v.positionOf(n, v.at)
			if n.Kind != unstable.String {
				errs = append(errs, fault(at, "must be an array of strings; one element is %s", kinds[n.Kind]))
				continue
			}
			if err := check(string(n.Data)); err != nil {
				errs = append(errs, fault(at, "%q %w", n.Data, err))
			}
			*field(c) = append(*field(c), Text{string(n.Data), at.line})
		}
		return errs
	}
}

// checked takes an array of strings that a check allows. An empty array sets an empty slice, not nil.
func checked(field func(*Config) *[]Text, check func(string) error) setter {
	return func(c *Config, v value) []Error {
		*field(c) = []Text{}
		return elements(field, check)(c, v)
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
		return errors.New("is not an absolute path; it must begin with a slash")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("has a control character")
	}
	return nil
}

// addrPort allows an empty text, or an address to listen at.
func addrPort(s string) error {
	if s == "" {
		return nil
	}
	if a, err := netip.ParseAddrPort(s); err != nil || a.Port() == 0 {
		return errors.New("is not ADDR:PORT: an IP address (IPv6 in brackets) and a port from 1 to 65535")
	}
	return nil
}

func pattern(s string) error {
	if s == "" {
		return errors.New("matches nothing; write * for all containers")
	}
	if _, err := path.Match(s, ""); err != nil {
		return errors.New("is not a pattern: * matches any characters, ? one character, [a-z] one of these, and \\* an asterisk")
	}
	return nil
}

// pathPattern allows a pattern of absolute paths, or a folder that ends with a slash.
func pathPattern(s string) error {
	if err := absolute(s); err != nil {
		return err
	}
	if clean := path.Clean(s); clean != strings.TrimSuffix(s, "/") || clean == "/" {
		return errors.New("is not a clean path: write it without //, . and .., and below a folder")
	}
	return pattern(s)
}

func nonEmpty(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	return nil
}
