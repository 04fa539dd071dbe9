"""The store `mysql://`: MariaDB and MySQL."""
