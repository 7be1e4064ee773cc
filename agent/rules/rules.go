// Package rules decides which rules a container gets. It reads the texts of rules, finds those of a
// container in the configuration and in its annotations, and refuses annotations that ask for more
// than the configuration allows.
//
// Its decisions depend on the configuration and on the registration alone, except for CheckPath,
// which looks at the file system. It puts nothing in force. It needs no privilege, and Linux 5.6
// (openat2).
package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/policy"
)

// Rules are the parsed form of api.Rules. Endpoints also has the endpoints of rules that name a
// host address.
type Rules struct {
	Mode      filter.Mode
	Endpoints endpoint.Set
	Ingress   []policy.Ingress
	Egress    []policy.Egress
	NameRules []policy.NameRule
	// Translation says how IPv4 is translated; nil: it is not.
	Translation *Translation
}

// Texts returns the rules as texts that Parse reads.
func (r *Rules) Texts() api.Rules {
	t := api.Rules{Mode: r.Mode.String(), Translate: r.Translation.text()}
	for _, ep := range r.Endpoints.All() {
		t.Endpoints = append(t.Endpoints, ep.String())
	}
	for _, in := range r.Ingress {
		t.Ingress = append(t.Ingress, in.String())
	}
	for _, out := range r.Egress {
		t.Egress = append(t.Egress, out.String())
	}
	for _, n := range r.NameRules {
		t.NameRules = append(t.NameRules, n.String())
	}
	return t
}

// TextError is an error in one of the rule texts.
type TextError struct {
	Key   string // mode, endpoints, ingress, egress, name rules, ipv6, dns or pool
	Index int    // in the list of that name
	Err   error
}

func (e *TextError) Error() string { return e.Err.Error() }

func (e *TextError) Unwrap() error { return e.Err }

// Parse reads rules as users write them: on the command line of tsugiki run, in a container's
// annotations, in the configuration. Its error joins a TextError for each wrong text. Parse reads
// rules only if all endpoints are right. Rules may still contradict each other (policy.NewTable).
//
// Where IPv4 is translated, an ingress rule for IPv4 may lead to an IPv6 address.
func Parse(t api.Rules) (Rules, error) {
	return join(parse(t))
}

// join joins the errors of parse.
func join(r Rules, bad []*TextError) (Rules, error) {
	if len(bad) == 0 {
		return r, nil
	}
	var errs []error
	for _, e := range bad {
		errs = append(errs, e)
	}
	return Rules{}, errors.Join(errs...)
}

func parse(t api.Rules) (Rules, []*TextError) {
	translation, bad := parseTranslation(&t)
	r, errs := parseFor(t, translation != nil)
	r.Translation = translation
	if errs = append(bad, errs...); len(errs) > 0 {
		return r, errs
	}
	if translation == nil {
		if len(r.NameRules) > 0 {
			errs = append(errs, &TextError{"name rules", 0, errNameRules})
		}
		return r, errs
	}
	if len(r.NameRules) > 0 {
		if err := r.leadNames(translation.from); err != nil {
			errs = append(errs, &TextError{"name rules", 0, err})
		}
	}
	if i := slices.IndexFunc(r.Ingress, func(in policy.Ingress) bool { return len(in.From) > 0 }); i >= 0 {
		errs = append(errs, &TextError{"ingress", 0, fmt.Errorf("%w -i %q: %w", policy.ErrRule, r.Ingress[i], errTranslatedFrom)})
	}
	if err := r.splitRanges(); err != nil {
		errs = append(errs, &TextError{"ingress", 0, err})
	}
	return r, errs
}

// errTranslatedFrom refuses sources where IPv4 is translated: relays and the translation of UDP have
// other sources than those that they carry.
var errTranslatedFrom = errors.New("+from: is not for containers whose IPv4 is translated; leave it out, and have a firewall say who connects")

// parseFor reads rules. translated is policy.Parser's Translated.
func parseFor(t api.Rules, translated bool) (Rules, []*TextError) {
	r := Rules{Mode: filter.Auto}
	var errs []*TextError
	if t.Mode != "" {
		mode, known := filter.ParseMode(t.Mode)
		if !known {
			err := fmt.Errorf("unknown mode %q; there are %s", t.Mode, enumerate(filter.ModeNames()))
			errs = append(errs, &TextError{"mode", 0, err})
		}
		r.Mode = mode
	}
	_, bad := parseList("endpoints", t.Endpoints, func(s string) ([]*endpoint.Endpoint, error) {
		all, err := endpoint.ParseAll(s)
		for _, e := range all {
			if err == nil {
				err = r.Endpoints.Add(e)
			}
		}
		return all, err
	})
	errs = append(errs, bad...)
	if len(bad) == 0 {
		p := policy.Parser{Endpoints: &r.Endpoints, Translated: translated}
		r.Ingress, bad = parseList("ingress", t.Ingress, p.Ingress)
		errs = append(errs, bad...)
		r.Egress, bad = parseList("egress", t.Egress, p.Egress)
		errs = append(errs, bad...)
		r.NameRules, bad = parseList("name rules", t.NameRules, parseNameRule)
		errs = append(errs, bad...)
	}
	return r, errs
}

func parseList[T any](key string, texts []string, parse func(string) ([]T, error)) (list []T, errs []*TextError) {
	for i, s := range texts {
		v, err := parse(s)
		if err != nil {
			errs = append(errs, &TextError{key, i, err})
			continue
		}
		list = append(list, v...)
	}
	return list, errs
}

// Limits of a container's annotations: anyone who may start a container writes them.
const (
	annotationMax  = 16 << 10 // bytes of a value
	annotationList = 64       // entries of a list
)

// OfAnnotations reads the annotations tsugiki.dev/mode, /translate and /ipv6, and, as lists,
// tsugiki.dev/endpoints, /ingress, /egress, /name-rules, /dns, /ftp and /sip. Commas, semicolons and
// newlines separate the entries of a list. It tells whether there is one of these. It ignores
// tsugiki.dev/name and all keys without the prefix.
func OfAnnotations(annotations map[string]string) (api.Rules, bool, error) {
	var t api.Rules
	var translate api.Translate
	lists := map[string]*[]string{"endpoints": &t.Endpoints, "ingress": &t.Ingress, "egress": &t.Egress, "name-rules": &t.NameRules, "dns": &translate.DNS}
	var on string
	words := map[string]*string{"mode": &t.Mode, "translate": &on, "ipv6": &translate.IPv6, "ftp": &translate.FTP, "sip": &translate.SIP}
	found := false
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		key, ours := strings.CutPrefix(name, api.AnnotationPrefix)
		if !ours || key == "name" {
			continue
		}
		found = true
		value := annotations[name]
		list, isList := lists[key]
		word, isWord := words[key]
		switch {
		case !isWord && !isList:
			errs = append(errs, fmt.Errorf("unknown annotation %q; there are %s", name, enumerate(annotationNames())))
		case len(value) > annotationMax:
			errs = append(errs, fmt.Errorf("annotation %s has %d bytes, at most %d may be", name, len(value), annotationMax))
		case isWord:
			*word = strings.TrimSpace(value)
		default:
			if *list = splitList(value); len(*list) > annotationList {
				errs = append(errs, fmt.Errorf("annotation %s has %d entries, at most %d may be", name, len(*list), annotationList))
			}
		}
	}
	if len(errs) == 0 {
		for _, ports := range []*string{&translate.FTP, &translate.SIP} {
			*ports = strings.Join(splitList(*ports), ",")
		}
		var err error
		if t.Translate, err = translateOf(on, translate); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return api.Rules{}, found, errors.Join(errs...)
	}
	return t, found, nil
}

// translateOf reads the annotation tsugiki.dev/translate, which the others of the translation need.
func translateOf(on string, t api.Translate) (*api.Translate, error) {
	switch {
	case on == "true":
		return &t, nil
	case on != "" && on != "false":
		return nil, fmt.Errorf("annotation %s is %q; write true or false", api.AnnotationTranslate, on)
	case t.IPv6+t.FTP+t.SIP != "" || len(t.DNS) > 0:
		return nil, fmt.Errorf("annotations %s, %s, %s and %s need %s: true", api.AnnotationIPv6, api.AnnotationDNS, api.AnnotationFTP, api.AnnotationSIP, api.AnnotationTranslate)
	}
	return nil, nil
}

func annotationNames() []string {
	var names []string
	for _, key := range config.AnnotationKeys() {
		names = append(names, api.AnnotationPrefix+key)
	}
	return names
}

// splitList splits a list and leaves out blank entries.
func splitList(s string) []string {
	var list []string
	for _, entry := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(",;\n", r) }) {
		if entry = strings.TrimSpace(entry); entry != "" {
			list = append(list, entry)
		}
	}
	return list
}

// enumerate writes "a, b and c".
func enumerate(list []string) string {
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " and " + list[last]
}
