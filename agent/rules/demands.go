package rules

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// demand is one thing that an annotation asks for, and whether an allowance gives it.
type demand struct {
	annotation string // without its prefix
	key, value string // key and value that the allowance has to have
	given      func(*allowance) bool
}

// demands are all demands of a container's annotations.
type demands struct {
	list       []demand
	annotation string // the one that is being read
}

// add demands a value of a list, compared by allowance.has.
func (d *demands) add(key, value string) {
	d.list = append(d.list, demand{d.annotation, key, value, func(w *allowance) bool { return w.has(key, value) }})
}

// demandsOf returns the demands of annotations. rules are the rules in them. unknown lists the
// annotations that may come from the image.
func demandsOf(annotations map[string]string, unknown []string, rules Rules) (*demands, error) {
	d := &demands{}
	for _, key := range annotationKeys(annotations) {
		d.annotation = key
		d.add(keyAnnotations, key)
		if slices.Contains(unknown, api.AnnotationPrefix+key) {
			d.list = append(d.list, demand{key, keyUnknown, "true", func(w *allowance) bool { return w.unknownOrigin }})
		}
	}
	if name, is := annotations[api.AnnotationName]; is {
		d.annotation = "name"
		d.add(keyNames, name)
	}
	named := map[*endpoint.Endpoint]bool{}
	for _, r := range rules.Ingress {
		d.annotation = "ingress"
		named[r.Endpoint] = true
		if err := d.endpoint(r.Endpoint); err != nil {
			return nil, err
		}
		if r.Endpoint.Type != endpoint.Unix && (r.Endpoint.Dynamic() || r.Endpoint.Port.Size() > 1) {
			d.ports(r.Ports)
		}
	}
	if rules.Translation != nil {
		d.resolvers(rules.Translation.Resolvers)
	}
	for _, r := range rules.Egress {
		d.annotation = asksForEgress(annotations)
		named[r.Endpoint] = true
		if err := d.endpoint(r.Endpoint); err != nil {
			return nil, err
		}
		if r.Endpoint.Type != endpoint.Unix {
			d.destination(r.Prefix)
		}
	}
	for _, r := range rules.NameRules {
		d.annotation = "name-rules"
		named[r.Endpoint] = true
		if err := d.endpoint(r.Endpoint); err != nil {
			return nil, err
		}
		d.destination(all6) // who owns a name can answer any address
	}
	for _, ep := range rules.Endpoints.All() {
		d.annotation = "endpoints"
		if named[ep] {
			continue
		}
		if err := d.endpoint(ep); err != nil {
			return nil, err
		}
	}
	return d, nil
}

var all6 = netip.MustParsePrefix("::/0")

// asksForEgress returns the annotation because of which a container has egress rules: where IPv4 is
// translated, there is a rule without an annotation of its own.
func asksForEgress(annotations map[string]string) string {
	for _, key := range []string{"egress", "ipv6"} {
		if _, is := annotations[api.AnnotationPrefix+key]; is {
			return key
		}
	}
	return "translate"
}

// resolvers demands that the agent asks resolvers, from its own network. No rule limits what it asks.
func (d *demands) resolvers(list []netip.AddrPort) {
	d.annotation = "dns"
	for _, r := range list {
		d.list = append(d.list, demand{d.annotation, keyResolvers, r.String(), func(w *allowance) bool { return slices.Contains(w.resolvers, r) }})
	}
}

// endpoint demands the address, ports, path and namespace of an endpoint. Through an endpoint that
// programs may name, they reach all that is not special, and listen at ports of the host's choice.
func (d *demands) endpoint(ep *endpoint.Endpoint) error {
	d.add(keyTypes, ep.Type.String())
	if err := d.netns(ep); err != nil {
		return fmt.Errorf("annotation %s%s, endpoint %s: %w", api.AnnotationPrefix, d.annotation, ep.Name, err)
	}
	if ep.Nameable {
		d.list = append(d.list, demand{d.annotation, keyNameable, "true", func(w *allowance) bool { return w.nameable }})
	}
	if ep.Type == endpoint.Unix {
		if !path.IsAbs(ep.Path) || path.Clean(ep.Path) != ep.Path {
			return fmt.Errorf("annotation %s%s, endpoint %s: %w", api.AnnotationPrefix, d.annotation, ep.Name, errUnclean)
		}
		d.add(keyPaths, ep.Path)
		return nil
	}
	d.address(ep.Addr)
	if ep.Nameable {
		d.destination(netip.PrefixFrom(ep.Addr, 0).Masked())
	}
	if !ep.Dynamic() || ep.Nameable {
		d.ports(ep.Port)
	}
	return nil
}

func (d *demands) netns(ep *endpoint.Endpoint) error {
	if ep.Netns == "" {
		return nil
	}
	if _, err := strconv.ParseUint(ep.Netns, 10, 64); err == nil {
		return errPID
	}
	if strings.Contains(ep.Netns, "/") && (!path.IsAbs(ep.Netns) || path.Clean(ep.Netns) != ep.Netns) {
		return errUnclean
	}
	d.add(keyNetns, ep.Netns)
	return nil
}

func (d *demands) destination(p netip.Prefix) {
	if kind := kindOf(p); kind != "" {
		d.add(keySpecial, kind)
		return
	}
	d.list = append(d.list, demand{d.annotation, keyDestinations, p.String(), func(w *allowance) bool { return within(p, w.destinations) }})
}

func (d *demands) address(a netip.Addr) {
	p := netip.PrefixFrom(a, a.BitLen())
	if kind := kindOf(p); kind != "" && !isChoice(p) {
		d.add(keySpecial, kind)
		return
	}
	value := a.String()
	if isChoice(p) {
		value = p.String()
	}
	d.list = append(d.list, demand{d.annotation, keyAddresses, value, func(w *allowance) bool { return within(p, w.addresses) }})
}

// ports demands ports of the host. Port 0 is a port of the kernel's choice.
func (d *demands) ports(r endpoint.PortRange) {
	if r.First == 0 {
		d.portRange(defaultPorts)
		r.First = 1
	}
	if r.Last > 0 {
		d.portRange(r)
	}
}

func (d *demands) portRange(r endpoint.PortRange) {
	d.list = append(d.list, demand{d.annotation, keyPorts, r.String(), func(w *allowance) bool { return w.hasPorts(r) }})
}

// missing returns the demands that an allowance does not give.
func (d *demands) missing(w *allowance) []demand {
	return slices.DeleteFunc(slices.Clone(d.list), func(d demand) bool { return d.given(w) })
}

// lines returns the lines of an allowance that give the missing demands, and no more.
func (d *demands) lines(w *allowance, missing []demand) string {
	var lines []string
	for _, key := range allowKeys {
		if !slices.ContainsFunc(missing, func(m demand) bool { return m.key == key }) {
			continue
		}
		if key == keyUnknown || key == keyNameable {
			lines = append(lines, key+" = true")
			continue
		}
		values := slices.Clone(w.lists[key])
		for _, asked := range d.list {
			value := asked.value
			if key == keyNames || key == keyNetns || key == keyPaths {
				value = literal.Replace(value)
			}
			if asked.key == key && !slices.Contains(values, value) && (!asked.given(w) || w.lists[key] == nil) {
				values = append(values, value)
			}
		}
		lines = append(lines, key+" = "+tomlList(values))
	}
	return strings.Join(lines, "; ")
}

// literal makes a pattern that matches a text alone.
var literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// tomlList writes an array of strings.
func tomlList(values []string) string {
	var quoted []string
	for _, v := range values {
		quoted = append(quoted, strconv.Quote(v))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
