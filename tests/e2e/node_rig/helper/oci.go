package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type object = map[string]any

// becomeRunc takes CPUs, memory nodes and quota out of what runc is asked for, notes the call, and becomes runc.
func becomeRunc(words []string) {
	id := words[len(words)-1]
	for _, word := range words {
		switch word {
		case "create":
			create(id, valueOf(words, "--bundle"))
		case "update":
			update(id)
		case "delete":
			note(object{"call": "delete", "id": id})
			if path := slurp(base + "/paths/" + id); path != "" {
				os.RemoveAll(filepath.Join(tree, path))
				os.Remove(base + "/paths/" + id)
			}
		default:
			continue
		}
		break
	}
	for _, runc := range []string{"/usr/sbin/runc", "/usr/bin/runc"} {
		syscall.Exec(runc, append([]string{runc}, words...), os.Environ())
	}
	os.Exit(127)
}

func create(id, bundle string) {
	file := filepath.Join(bundle, "config.json")
	data, _ := os.ReadFile(file)
	spec := decode(data)
	linux, _ := spec["linux"].(object)
	path, _ := linux["cgroupsPath"].(string)
	resources, _ := linux["resources"].(object)
	row := take(resources, folderOf(path))
	delete(resources, "hugepageLimits") // the described machine's
	writeAllEffective()
	os.MkdirAll(base+"/paths", 0o755)
	os.WriteFile(base+"/paths/"+id, []byte(path), 0o644)
	annotations, _ := spec["annotations"].(object)
	row["call"], row["id"], row["cgroup"] = "create", id, path
	row["pod"], row["name"] = annotations["io.kubernetes.cri.sandbox-name"], annotations["io.kubernetes.cri.container-name"]
	note(row)
	data, _ = json.Marshal(spec)
	os.WriteFile(file, data, 0o644)
}

func update(id string) {
	data, _ := io.ReadAll(os.Stdin)
	resources := decode(data)
	row := take(resources, filepath.Join(tree, slurp(base+"/paths/"+id)))
	writeAllEffective()
	row["call"], row["id"] = "update", id
	note(row)
	data, _ = json.Marshal(resources)
	if file, err := os.CreateTemp(base, "update"); err == nil {
		os.Remove(file.Name())
		file.Write(data)
		file.Seek(0, io.SeekStart)
		syscall.Dup2(int(file.Fd()), 0)
	}
}

// take moves CPUs, memory nodes and quota from the resources into the folder, and returns them.
func take(resources object, folder string) object {
	taken := object{}
	cpu, _ := resources["cpu"].(object)
	for key, name := range map[string]string{"cpus": "cpuset.cpus", "mems": "cpuset.mems"} {
		if value, _ := cpu[key].(string); value != "" {
			put(filepath.Join(folder, name), value)
			taken[key] = value
		}
		delete(cpu, key)
	}
	if quota := cpu["quota"]; quota != nil {
		period := ""
		if cpu["period"] != nil {
			period = fmt.Sprint(cpu["period"])
		} else if now := strings.Fields(slurp(filepath.Join(folder, "cpu.max"))); len(now) == 2 {
			period = now[1]
		}
		line := quotaLine(fmt.Sprint(quota), period)
		put(filepath.Join(folder, "cpu.max"), line)
		taken["quota"] = line
	}
	delete(cpu, "quota")
	delete(cpu, "period")
	return taken
}

func decode(data []byte) object {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber() // limits beyond 2^53 stay what they are
	found := object{}
	decoder.Decode(&found)
	return found
}

func note(row object) {
	row["t"] = float64(time.Now().UnixMilli()) / 1000
	line, _ := json.Marshal(row)
	if file, err := os.OpenFile(base+"/oci.jsonl", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		file.Write(append(line, '\n'))
		file.Close()
	}
}

func valueOf(words []string, name string) string {
	for index, word := range words {
		if word == name && index+1 < len(words) {
			return words[index+1]
		}
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}
