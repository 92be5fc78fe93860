"""node.toml as frozen settings, with every problem at once, and what a node last ran with.

node_file       the file, read by the types of the settings
sections_text   its text, cut into sections
in_force        the settings and tag files last in force, kept in the state folder
"""

from agent.config.in_force import InForce, KeptSettings, load_kept, load_usable
from agent.config.node_file import (
    SECRET_NAME,
    USER_OF_URL,
    ConfigError,
    ConfigFile,
    Sections,
    load,
    load_sections,
    profile_file,
    read,
)
from agent.config.start_settings import NotInForce
